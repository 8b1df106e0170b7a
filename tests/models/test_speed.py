"""Products on CPUs: the library that computes them, and attention made of them."""

import os
import subprocess
import sys

import torch
from torch.nn.functional import scaled_dot_product_attention

from spag.models.packed_attention import attend_by_products, uses_products
from spag.models.speed import choose_products


def test_chosen_products_have_the_precision_of_float32() -> None:
    choose_products(torch.device("cpu"), torch.float32)
    one, other = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in ((300, 576), (576, 400)))
    exact = one.double() @ other.double()
    assert ((one @ other).double() - exact).abs().max() < 1e-5 * exact.abs().max()  # in bfloat16: 2e-3


def test_products_of_many_shapes_take_little_memory() -> None:
    """oneDNN and torch read how many compiled products they may keep once, at the first product."""
    script = (
        "import psutil, torch; from spag.models.speed import choose_products;"
        "choose_products(torch.device('cpu'), torch.float32); weights = torch.ones(576, 576);"
        "used = lambda: psutil.Process().memory_info().rss; before = used();"
        "[torch.ones(rows, 576) @ weights for rows in range(100, 900)]; print(used() - before)"
    )
    names = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 500e6  # without limits 1.1e9, with oneDNN


def test_attention_by_products_is_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, heads, length, 16, generator=generator, requires_grad=True)
        for heads, length in ((6, 5), (2, 9), (2, 9))
    )
    mask = torch.where(torch.ones(5, 9, dtype=torch.bool).tril(4), 0.0, -torch.inf)[None, None]
    found, gradients = [], []
    for attended in (
        attend_by_products(query, key, value, mask, None),
        scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True),
    ):
        found.append(attended)
        gradients.append(torch.autograd.grad(attended.square().sum(), (query, key, value)))
    torch.testing.assert_close(*found)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_long_texts_and_half_precision_take_torchs_kernel() -> None:
    query, mask = torch.empty(4, 8, 500, 16), torch.empty(4, 1, 500, 1000)
    assert uses_products(query, mask)
    assert not uses_products(torch.cat([query, query]), mask)
    assert not uses_products(query.bfloat16(), mask)
