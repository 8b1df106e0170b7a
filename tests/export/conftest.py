"""The run folders of tests/report are what a card is made of."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "report"))
