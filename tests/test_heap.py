"""What the C library does with freed memory."""

import ctypes
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes
from spag.storage.machine import map_large_blocks

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keep")]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
libc.malloc.restype = ctypes.c_void_p

def mapped():
    before = libc.mallinfo2().hblks
    blocks = [libc.malloc(ctypes.c_size_t(2 << 20)) for _ in range(4)]
    return libc.mallinfo2().hblks - before

libc.free(ctypes.c_void_p(libc.malloc(ctypes.c_size_t(30 << 20))))  # freeing it raises glibc's limit to 30 MB
before = mapped()
map_large_blocks()
print(before, mapped())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc's allocator only")
def test_large_blocks_are_mapped_even_after_larger_ones_were_freed() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["0", "4"]
