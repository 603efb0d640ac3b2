"""What the engine is asked for, with a store of a KV connector and without."""

from types import SimpleNamespace

import pytest


class Recorder:
    """Take the place of vLLM's LLM: a connector needs a store that no test here has."""

    def __init__(self, connector):
        self.llm_engine = SimpleNamespace(vllm_config=SimpleNamespace(kv_transfer_config=connector))
        self.asked = {}

    def reset_prefix_cache(self, **options):
        self.asked = options
        return True


@pytest.mark.parametrize("connector", [None, object()], ids=["none", "connector"])
def test_empties_the_store_of_a_connector(subject, connector):
    llm = Recorder(connector)
    subject(llm)
    assert llm.asked["reset_running_requests"] is True
    assert llm.asked.get("reset_connector", False) == (connector is not None)
