"""Triton: kernels compiled and run on the GPU; without one, compiled ahead of time, with what starts them."""

from __future__ import annotations

import errno
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from loradock.catalog import engines
from loradock.env_check.base import LOADED, Check, Finding, Intent, error, ok, warning
from loradock.env_check.compute.places import Device, at_each
from loradock.env_check.remedies import as_locked
from loradock.facts import Facts
from loradock.machine import Host

ARCHITECTURES = (80, 90)
COUNT, BLOCK, SIZE = 1000, 128, 32
MODULE = """
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "loradock_probe", NULL, -1, methods};
PyMODINIT_FUNC PyInit_loradock_probe(void) { return PyModule_Create(&module); }
"""


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Compile afresh in a folder of its own within Triton's cache; then run where there is a GPU."""
    say = error if is_used(facts, plan) else warning
    try:
        import triton
        from triton import knobs
    except ImportError as failure:
        return [say(f"triton cannot be imported: {failure}", remedy=as_locked(host, "triton"))]
    cache = Path(knobs.cache.dir)
    try:
        folder = tempfile.TemporaryDirectory(dir=nearest(cache), prefix="loradock-")
    except OSError as failure:
        what = f"Triton's cache {cache} cannot be written: {failure.strerror}"
        return [say(what, remedy="export TRITON_CACHE_DIR=/tmp/triton")]
    with folder as path, knobs.cache.scope():
        knobs.cache.dir = path
        fault = failure_of(lambda: start_module(path), cache, host)
        fault = fault or failure_of(compile_ahead, cache, host)
        if fault:
            return [say(fault[0], remedy=fault[1])]
        if plan.uses_gpu(facts):
            return at_each(host, facts, plan, lambda place: _run_at(place, say, as_locked(host, "triton")))
    return [ok(f"triton {triton.__version__} compiles for {', '.join(f'sm{arch}' for arch in ARCHITECTURES)}")]


def is_used(facts: Facts, plan: Intent) -> bool:
    """True where the run cannot do without: the fast engine's kernels on a GPU, or torch.compile."""
    if plan.config is None:
        return False
    has_kernels = any(engine.has_own_kernels for engine in engines.eligible(plan.config.engine))
    has_kernels = has_kernels and plan.config.model.kernels != "torch"
    return plan.config.train.compile != "off" or (plan.uses_gpu(facts) and has_kernels)


def nearest(folder: Path) -> Path:
    """The folder itself, or the closest one above it that exists: where Triton would make it."""
    return next(parent for parent in (folder, *folder.parents) if parent.is_dir())


def failure_of(act: Callable[[], None], cache: Path, host: Host) -> tuple[str, str] | None:
    """What is wrong and its remedy, where this fails."""
    try:
        act()
    except Exception as failure:  # noqa: BLE001  compilers fail in many ways; each is this check's finding
        return explain(failure, cache, host.environ, as_locked(host, "triton"))
    return None


def explain(failure: Exception, cache: Path, environ: Mapping[str, str], remedy: str) -> tuple[str, str]:
    """(what, remedy) of a failed compilation; `again` is the command that reinstalls Triton."""
    text = str(failure)
    if isinstance(failure, OSError) and failure.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"Triton's cache {cache} is full", "export TRITON_CACHE_DIR=/tmp/triton"
    if "failed to map segment" in text or "cannot open shared object" in text:
        what = f"Triton's cache {cache} is on a noexec mount, so its kernels cannot be started"
        return what, "export TRITON_CACHE_DIR=/tmp/triton"
    if isinstance(failure, OSError) and str(failure.filename or "").endswith("ptxas"):
        return f"Triton's assembler ptxas cannot be run: {failure.strerror}", remedy
    if (compiler := environ.get("CC")) and isinstance(failure, (OSError, subprocess.CalledProcessError)):
        return f"the C compiler that CC names does not work: {compiler}", "unset CC"
    if "C compiler" in text or isinstance(failure, FileNotFoundError):
        return "no C compiler: Triton builds a module with it to start a kernel", "apt-get install -y gcc libc6-dev"
    if isinstance(failure, subprocess.CalledProcessError):
        what = "the C compiler cannot build a Python module: headers are missing"
        return what, "apt-get install -y libc6-dev python3-dev"
    line = next((line.strip() for line in text.splitlines() if line.strip()), type(failure).__name__)
    return f"Triton cannot compile a kernel: {line[:160]}", remedy


def start_module(folder: str) -> None:
    """Build and load a C module, as Triton does to start a kernel."""
    import importlib.util

    from triton.runtime.build import _build

    source = Path(folder) / "loradock_probe.c"
    source.write_text(MODULE, encoding="utf-8")
    built = _build("loradock_probe", str(source), folder, [], [], [], [])
    spec = importlib.util.spec_from_file_location("loradock_probe", built)
    if spec is None or spec.loader is None:
        raise ImportError(f"{built} is not a module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if module.answer() != 42:
        raise RuntimeError("the compiled module gives a wrong answer")


def compile_ahead() -> None:
    """Both kernels for each architecture down to machine code, with the assembler of the wheel; needs no GPU."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from loradock.env_check.compute import triton_kernels

    vector: dict[str, Any] = {
        "signature": {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "count": "i32", "block": "constexpr"},
        "constexprs": {(4,): BLOCK},
    }
    product: dict[str, Any] = {
        "signature": {"a_ptr": "*fp16", "b_ptr": "*fp16", "out_ptr": "*fp32", "size": "constexpr"},
        "constexprs": {(3,): SIZE},
    }
    for architecture in ARCHITECTURES:
        for kernel, settings in ((triton_kernels.scale_and_add, vector), (triton_kernels.square_product, product)):
            compiled: Any = triton.compile(ASTSource(fn=kernel, **settings), target=GPUTarget("cuda", architecture, 32))
            if not compiled.asm["cubin"]:
                raise RuntimeError(f"nothing was compiled for sm{architecture}")


def _run_at(place: Device, say: Callable[..., Finding], remedy: str) -> list[Finding]:
    """Run both kernels on the GPU and compare; `say` makes what is wrong a finding, `again` reinstalls Triton."""
    import torch

    from loradock.env_check.compute import triton_kernels

    with torch.cuda.device(place.device):
        x, y = place.random(COUNT, seed=5, dtype=torch.float32), place.random(COUNT, seed=6, dtype=torch.float32)
        out = torch.empty_like(x)
        vector: Any = triton_kernels.scale_and_add
        vector[(-(-COUNT // BLOCK),)](x, y, out, COUNT, block=BLOCK)
        a, b = (place.random(SIZE, SIZE, seed=seed, dtype=torch.float16) for seed in (7, 8))
        product = torch.empty(SIZE, SIZE, device=place.device)
        square: Any = triton_kernels.square_product
        square[(1,)](a, b, product, size=SIZE)
        place.finish()
    is_right = torch.allclose(out.cpu(), 2 * x.cpu() + y.cpu(), rtol=1e-6, atol=1e-6) and torch.allclose(
        product.cpu().double(), a.cpu().double() @ b.cpu().double(), rtol=1e-4, atol=1e-4
    )
    if not is_right:
        what = f"Triton's kernels compute wrong results on {place.device}"
        return [say(what, remedy=remedy)]
    return [ok(f"a vector and a matrix kernel, compiled here, give right results on {place.device}")]


CHECK = Check(
    name="triton",
    group="compute",
    proves="Triton compiles and launches kernels; on a GPU their results are checked.",
    look=look,
    level="compute",
    limit_seconds=60,
    depends_on=(*LOADED, "device", "model", "engine"),
)
