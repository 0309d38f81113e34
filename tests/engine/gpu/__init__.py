import pytest

pytestmark = pytest.mark.interpreter
