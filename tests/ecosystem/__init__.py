import pytest

pytestmark = pytest.mark.clients
