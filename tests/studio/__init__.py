import pytest

pytestmark = pytest.mark.browser
