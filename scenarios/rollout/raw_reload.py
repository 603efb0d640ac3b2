"""What a trainer adds to vLLM's worker to load new weights from a folder, in the manner of prime-rl."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class RawReload:
    """An extension of vLLM's worker (``--worker-extension-cls``); its methods are called by ``/collective_rpc``."""

    model_runner: Any

    def update_weights_from_folder(self, folder: str) -> None:
        """Load the weights once more by what loaded the first ones."""
        from safetensors.torch import load_file

        self.model_runner.model.load_weights(iter(load_file(Path(folder, "model.safetensors")).items()))
