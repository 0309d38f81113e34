import pytest

pytestmark = pytest.mark.cluster
