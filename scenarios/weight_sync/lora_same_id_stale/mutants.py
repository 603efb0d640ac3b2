from mutants import broken, failing, mutant, replaces
from pytest_rlregress.remedies.weight_sync import adapter_request


@broken(only="test_each_version")
def one_id_for_all(name, version, folder):
    from vllm.lora.request import LoRARequest

    return LoRARequest(f"{name}@{version}", 4711, str(folder))


@broken(only="test_one_folder")
def one_name_for_all(name, version, folder):
    from vllm.lora.request import LoRARequest

    return LoRARequest(name, adapter_request(name, version, folder).lora_int_id, str(folder))


@mutant("absent", only="test_same_id")
def always_loaded_again(monkeypatch):
    """And the prefix cache is reset each time, running requests' too."""
    from vllm import LLM
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager

    add, generate = LRUCacheWorkerLoRAManager.add_adapter, LLM.generate

    def add_adapter(self, lora_request):
        self._adapter_manager.remove_adapter(lora_request.lora_int_id)
        return add(self, lora_request)

    def generate_anew(self, *args, **options):
        self.reset_prefix_cache()
        return generate(self, *args, **options)

    monkeypatch.setattr(LRUCacheWorkerLoRAManager, "add_adapter", add_adapter)
    monkeypatch.setattr(LLM, "generate", generate_anew)


replaces("changed", "vllm.LLM.generate", only="test_same_id")(failing(RuntimeError("EngineCore encountered an issue")))
