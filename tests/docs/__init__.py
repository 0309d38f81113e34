import pytest

pytestmark = pytest.mark.docs
