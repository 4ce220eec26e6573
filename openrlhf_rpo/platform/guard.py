"""No process runs Python code that comes with a model, unless the user allowed it (--rpo.trust_remote_code true).

OpenRLHF loads every model with ``trust_remote_code=True``. ``install`` therefore patches the few transformers functions that
load code of a model, an adapter or a kernel on the hub; each checks the permission when it is called. The permission is an
environment variable, which the driver gives to the processes of the run; without it nothing is allowed.
"""

import os
from typing import Any

import wrapt

from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.platform.ray_class import unwrap

TRUST_ENV = "OPENRLHF_RPO_TRUST_REMOTE_CODE"
# No folder can be made below a device, so processes that vLLM starts itself cannot import a model's code from there. The
# words are for whoever sees the path in an error.
NO_FOLDER = f"{os.devnull}/a model's code needs --rpo.trust_remote_code true"
OFFICIAL_KERNELS = ("kernels-community/", "Atlas-Inference/gdn")  # named in transformers itself

_installed = False


class ModelCodeError(UsageError):
    """A model brings code that was not allowed; it was not run."""


def allow(trusted: bool) -> None:
    """Grant or withdraw the permission, for this process and those it starts."""
    os.environ[TRUST_ENV] = "1" if trusted else "0"


def allowed() -> bool:
    return os.environ.get(TRUST_ENV) == "1"


def install() -> None:
    """Guard this process. Imports nothing: a module is patched once it is imported, or now if it is already."""
    global _installed
    if _installed:
        return
    _installed = True
    for module, function in (
        ("transformers.dynamic_module_utils", _no_modules),
        ("transformers.models.auto.auto_factory", _no_adapters),
        ("transformers.integrations.peft", _no_adapters),
        ("transformers.pipelines", _no_adapters),
        ("transformers.integrations.hub_kernels", _no_kernels),
        ("openrlhf.trainer.ray.vllm_engine", _no_modules_in_children),
    ):
        wrapt.register_post_import_hook(function, module)


def _refuse(what: str, remedy: str = "") -> None:
    if not allowed():
        raise ModelCodeError(f"{what}; it was not run. Read it, then {remedy}add --rpo.trust_remote_code true")


def _no_modules(module: Any) -> None:
    """Every ``auto_map`` and ``custom_generate`` ends in these two: the first gets the file found, the second imports it.

    They are called through their module, so earlier imports from it do not matter.
    """
    check_imports, get_class = module.check_imports, module.get_class_in_module

    def checked(filename: Any) -> Any:
        _refuse(f"{filename} is Python code that comes with a model")
        return check_imports(filename)

    def loaded(class_name: str, module_path: Any, **options: Any) -> Any:
        _refuse(f"{module_path} is Python code that comes with a model")
        return get_class(class_name, module_path, **options)

    module.check_imports, module.get_class_in_module = checked, loaded


def _no_adapters(module: Any) -> None:
    """An adapter names another model, which is loaded in place of this one, and modules to import."""
    find = module.find_adapter_config_file

    def found(*args: Any, **options: Any) -> Any:
        file = find(*args, **options)
        if file is not None:
            _refuse(f"{file} makes the model an adapter, which may name any code", "merge it into its model, or ")
        return file

    module.find_adapter_config_file = found


def _no_kernels(module: Any) -> None:
    """A model's configuration may name any repository as its attention (``attn_implementation``)."""
    get_kernel = module.get_kernel

    def known(kernel_name: str, *args: Any, **options: Any) -> Any:
        if not kernel_name.startswith(OFFICIAL_KERNELS):
            _refuse(f"{kernel_name} is code on the hub that a model or --ds.attn_implementation names")
        return get_kernel(kernel_name, *args, **options)

    module.get_kernel = known


def _no_modules_in_children(module: Any) -> None:
    """On a GPU, vLLM works in processes that import none of this; they inherit the environment."""
    engine = unwrap(module.RolloutRayActor)
    start = engine.__init__

    async def without_modules(self: Any, *args: Any, **kwargs: Any) -> None:
        if not allowed():
            os.environ["HF_MODULES_CACHE"] = NO_FOLDER
        await start(self, *args, **kwargs)

    for cls in (engine, module.RolloutRayActor.__ray_metadata__.modified_class):  # as ``weight_sync.patch_engine``
        cls.__init__ = without_modules
