"""The contract's assertions say what they saw."""

import pytest

pytest.register_assert_rewrite("tests.spark.replica.contract")
