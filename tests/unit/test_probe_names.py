from __future__ import annotations

import pytest

from dist_checks.probe.names import plain, plain_names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("blocks.0.wq.weight", "blocks.0.wq.weight"),
        ("module.blocks.0.wq.weight", "blocks.0.wq.weight"),
        ("module._orig_mod.blocks.0._checkpoint_wrapped_module.norm.bias", "blocks.0.norm.bias"),
        ("_fsdp_wrapped_module.blocks.1._fsdp_wrapped_module._orig_mod.w", "blocks.1.w"),
        ("blocks.0.submodule.weight", "blocks.0.submodule.weight"),
        ("", ""),
    ],
)
def test_wrappers_leave_no_mark_on_a_name(name: str, expected: str) -> None:
    assert plain(name) == expected


def test_two_names_that_become_one_are_an_error_that_says_both() -> None:
    with pytest.raises(ValueError, match=r"'a\.w' and 'a\.module\.w' are both 'a\.w'.*rename one"):
        plain_names(["a.w", "a.module.w"])


def test_order_is_kept() -> None:
    assert list(plain_names(["module.b", "module.a"]).items()) == [("module.b", "b"), ("module.a", "a")]
