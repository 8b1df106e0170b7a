"""Train language models by self-play of adversarial language games (SPAG, arXiv 2404.10642)."""
