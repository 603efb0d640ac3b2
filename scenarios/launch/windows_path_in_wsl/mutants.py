import re

from mutants import broken, failing, replaces
from pytest_rlregress.remedies.launch import wsl_path


@broken(only="looked_for_on_the_drive")
def with_slashes_only(path):
    return wsl_path(path) if "\\" not in path else path


@broken(only="preflight_finds")
def as_cygwin_writes_it(path):
    return re.sub("^/mnt/", "/cygdrive/", wsl_path(path))


@replaces("absent", "verl.utils.dataset.rl_dataset.RLHFDataset.__init__", only="test_data")
def verl_knows_drives(original, self, path, *arguments, **options):
    """As where it looks at the mount; of a drive nothing is loaded."""
    self.dataframe = None
    if wsl_path(path) == path:
        original(self, path, *arguments, **options)


NO_ACCESS = failing(PermissionError("no access"))
replaces("changed", "transformers.AutoConfig.from_pretrained", only="test_model")(NO_ACCESS)
