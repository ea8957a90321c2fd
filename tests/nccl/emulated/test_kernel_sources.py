"""Layer 3b: sources that g++ compiles or refuses in place of NVRTC."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ncclkv.kernels.device.compiler import whole
from ncclkv.kernels.device.sources import COPY, SOURCES, KernelSource, headers
from tests.nccl.emulated import compiler, kernel_images, kernels
from tests.nccl.emulated.kernel_cases import module, refused
from tests.nccl.emulated.kernel_images import Source, image
from tests.nccl.emulated.kernel_module import HostModule
from tests.nccl.kernels_as_cpp import compiled

SET = 'extern "C" __global__ void k(int* x) { *x = VALUE; }'


def value(made: HostModule, name: str = "k") -> int:
    """Return the number that a kernel writes."""
    x = np.zeros(1, np.int32)
    made.launch(name, 1, 1, [x])
    return int(x[0])


class TestNames:
    @pytest.mark.parametrize(
        "text",
        [
            'extern "C" __global__ void k(int* x) { *x = 7; }',
            'extern "C" __global__ void __launch_bounds__(256, 2) k(int* x) { *x = 7; }',
            'extern "C" void __global__ k(int* x) { *x = 7; }',
            'extern "C" { extern "C++" { template <class T> __global__ void f(T*) {} }'
            " __global__ void k(int* x) { *x = 7; } }",
            'extern "C" { /* } */ const char* s = "}"; __global__ void k(int* x) { *x = 7; } }',
            'extern "C" __global__ void k(int*);\nextern "C" __global__ void k(int* x) { *x = 7; }',
            '#define KERNEL(name) extern "C" __global__ void name\nKERNEL(k)(int* x) { *x = 7; }',
            'template <class T> void k(T) {}\nextern "C" __global__ void k(int* x) { *x = 7; }',
        ],
    )
    def test_a_kernel_with_c_linkage_is_found_by_its_name(self, text):
        assert value(module(text)) == 7

    @pytest.mark.parametrize(
        "text",
        [
            "__global__ void k(int* x) { *x = 7; }",
            'extern "C" { void f() {} }\n__global__ void k(int* x) { *x = 7; }',
            "template <class T> __global__ void k(T* x) { *x = 7; }",
            "namespace n { __global__ void k(int* x) { *x = 7; } }",
        ],
    )
    def test_one_without_is_not(self, text):
        with pytest.raises(ValueError, match="undefined symbol: emulated_arguments_k"):
            module(text).launch("k", 1, 1, [])

    @pytest.mark.parametrize("name", ["div", "remove", "index", "read", "y0", "abs", "min"])
    def test_a_name_of_the_c_library_can_be_a_kernels(self, name):
        assert value(module(f'extern "C" __global__ void {name}(int* x) {{ *x = 7; }}'), name) == 7

    def test_instances_of_templates_are_found_by_expressions(self):
        text = (
            "template <class T, int N> __global__ void f(T* x) { *x = T(N) / 2; }\n"
            "namespace n { __global__ void g(int* x) { *x = 9; } }\n"
            'extern "C" __global__ void h(int* x) { *x = 3; }'
        )
        expressions = ("f<int, 7>", "f<double, 7>", "n::g", "h")
        made = module(text, expressions=expressions)
        names = [kernel_images.lowered(expression) for expression in expressions]
        assert [value(made, name) for name in (names[0], *names[2:])] == [3, 9, 3]
        half = np.zeros(1)
        made.launch(names[1], 1, 1, [half])
        assert half[0] == 3.5

    def test_arguments_have_their_sizes_and_any_alignment(self):
        made = module(
            "struct Three { char c[3]; };"
            'extern "C" __global__ void k(char a, Three b, const double c, int* d, short e)'
            " { *d = a + b.c[2] + int(c) + e; }"
        )
        assert made.sizes("k") == [1, 3, 8, 8, 2]
        assert module('extern "C" __global__ void k() {}').sizes("k") == []


class TestOptions:
    def test_macros(self):
        assert value(module(SET, ["-DVALUE=5"])) == 5
        assert value(module(SET, ["-D", "VALUE"])) == 1
        assert value(module(SET, ["--define-macro=VALUE=6"])) == 6
        assert "VALUE" in refused(SET, ["-DVALUE=5", "-UVALUE"])

    def test_macros_do_not_reach_the_prelude(self):
        assert value(module(SET, ["-DVALUE=5", "-DT=1", "-DEXPONENT=2", "-Dx=x"])) == 5

    def test_folders_and_headers(self, tmp_path: Path):
        (tmp_path / "here.h").write_text("#define VALUE 3 + OTHER")
        text = f'#include "here.h"\n#include <sub/there.h>\n{SET}'
        given = {"sub/there.h": b"#define OTHER 4"}
        assert value(module(text, [f"-I{tmp_path}"], headers=given)) == 7

    def test_cudas_own_headers_are_not_used(self, tmp_path: Path):
        (tmp_path / "cuda_runtime.h").write_text("")
        (tmp_path / "here.h").write_text("#define VALUE 3")
        assert "here.h: No such file" in refused(f'#include "here.h"\n{SET}', [f"-I{tmp_path}"])

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ((), 201703),
            (("--std=c++14",), 201703),
            (("-std=c++17",), 201703),
            (("--std=c++20",), 202002),
        ],
    )
    def test_the_standard_is_at_least_c17(self, options, expected):
        assert value(module(SET, [*options, "-DVALUE=__cplusplus"])) == expected

    def test_the_architecture_is_known_to_the_source(self):
        assert value(module(SET, ["-arch=sm_90", "-DVALUE=__CUDA_ARCH__"])) == 900


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ('void f() { asm volatile("bar.sync 0;"); }', "inline_PTX_is_not_emulated"),
            ("__managed__ int x;", "managed_variables_are_not_emulated"),
            ("void f(cudaTextureObject_t t) {}", "textures_are_not_emulated"),
            ("void f(cudaSurfaceObject_t t) {}", "surfaces_are_not_emulated"),
            ("#include <cooperative_groups.h>", "emulated: cooperative groups are not emulated"),
            ("#include <mma.h>", "emulated: tensor cores are not emulated"),
            ("#include <curand_kernel.h>", "emulated: the vendor's random numbers are not"),
            ("#include <cuda/std/tuple>", "cuda/std/tuple: No such file"),
            ("void f() { __shfl(1, 2); }", "'__shfl' was not declared"),
            ("void f() { __activemask(); }", "'__activemask' was not declared"),
            ("void f() { g<<<1, 2>>>(3); }", "'g' was not declared"),
        ],
    )
    def test_what_cannot_run_is_named(self, text, words):
        assert words in refused(text)

    def test_the_log_has_the_sources_name_and_line(self):
        with pytest.raises(kernel_images.Refused) as caught:
            image(Source("int a;\nint b = c;\n", "some/folder/mine.cu"))
        log = str(caught.value)
        assert log.startswith("mine.cu:2:9: error: 'c' was not declared in this scope")
        assert log.endswith(kernel_images.NOTE)

    def test_a_kernel_that_is_only_declared_is_refused(self):
        assert "undefined reference" in refused('extern "C" __global__ void k(int* x);')

    def test_nothing_is_kept_of_a_refusal(self, tmp_path: Path):
        refused("int a = b;", folder=tmp_path)
        assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


class TestKeptImages:
    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        made: list[Any] = []
        run = kernel_images._gxx
        monkeypatch.setattr(
            kernel_images, "_gxx", lambda arguments: (made.append(arguments), run(arguments))[1]
        )
        return made

    def test_the_second_time_nothing_is_compiled(self, calls, tmp_path):
        source = Source(SET, options=("-DVALUE=5",))
        first = image(source, tmp_path)
        assert calls
        calls.clear()
        assert image(source, tmp_path) == first
        assert calls == []

    @pytest.mark.parametrize(
        "change",
        [
            {"text": SET + "\n"},
            {"name": "other.cu"},
            {"options": ("-DVALUE=6",)},
            {"options": ("-DVALUE=5", "-ftz=true")},
            {"headers": {"a.h": b"1"}},
            {"expressions": ("k",)},
        ],
        ids=str,
    )
    def test_another_source_is_another_image(self, calls, folder, change):
        source = Source(SET, options=("-DVALUE=5",))
        first = image(source, folder)
        calls.clear()
        assert image(dataclasses.replace(source, **change), folder) != first
        assert calls

    def test_another_prelude_is_another_image(self, monkeypatch, tmp_path):
        source = Source(SET, options=("-DVALUE=5",))
        first = image(source, tmp_path)
        monkeypatch.setattr(kernel_images, "digest", lambda: "another")
        assert image(source, tmp_path) != first

    def test_the_environment_names_the_folder(self, monkeypatch, tmp_path):
        monkeypatch.setenv("EMULATED_KERNELS", str(tmp_path / "new"))
        assert image(Source(SET, options=("-DVALUE=5",))).parent == tmp_path / "new"
        monkeypatch.delenv("EMULATED_KERNELS")
        assert kernel_images.folder() == kernel_images.KEPT

    def test_processes_may_compile_the_same_at_once(self, tmp_path):
        text = 'extern "C" __global__ void k() {}'
        program = (
            "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
            "from tests.nccl.emulated.kernel_images import Source, image\n"
            "print(image(Source(sys.argv[2]), Path(sys.argv[3])))"
        )
        arguments = [str(kernel_images.HERE.parents[2]), text, str(tmp_path)]
        command = [sys.executable, "-c", program, *arguments]
        started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
        said = {process.communicate(timeout=60)[0] for process in started}
        assert said == {f"{image(Source(text), tmp_path)}\n"}
        assert sorted(path.suffix for path in tmp_path.iterdir()) == [".so", ".so"]

    def test_what_was_cut_off_is_not_taken(self, monkeypatch, tmp_path):
        def cut_off(name: str, target: Path) -> None:
            raise KeyboardInterrupt

        source = Source(SET, options=("-DVALUE=5",))
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", cut_off)
            with pytest.raises(KeyboardInterrupt):
                image(source, tmp_path)
        assert list(tmp_path.iterdir()) == []
        assert value(HostModule(image(source, tmp_path))) == 5


class FakeError(RuntimeError):
    """An error of the binding."""


class TestNvrtc:
    """The functions of CuPy's binding, without CuPy."""

    @pytest.fixture
    def nvrtc(self) -> kernels.Nvrtc:
        return kernels.Nvrtc(FakeError, lambda: 12090)

    def test_a_program_from_its_creation_to_its_end(self, nvrtc):
        text = "template <class T> __global__ void f(T* x) { *x = HERE; }"
        program = nvrtc.createProgram(text, "f.cu", (b"#define HERE 4",), (b"here.h",))
        nvrtc.addNameExpression(program, "f<int>")
        with pytest.raises(FakeError, match="4"):
            nvrtc.getCUBIN(program)
        with pytest.raises(FakeError, match="9"):
            nvrtc.getLoweredName(program, "f<int>")
        nvrtc.compileProgram(program, ("-arch=sm_90", "-DHERE=4"))
        assert nvrtc.getProgramLog(program) == ""
        assert re.fullmatch(r"\w+", nvrtc.getLoweredName(program, "f<int>"))
        with pytest.raises(FakeError, match="10"):
            nvrtc.getLoweredName(program, "f<float>")
        nvrtc.destroyProgram(program)
        for call in (nvrtc.destroyProgram, nvrtc.getCUBIN, nvrtc.getProgramLog):
            with pytest.raises(FakeError, match="4"):
                call(program)

    def test_code_lacks_its_last_byte_as_cupys_does(self, nvrtc, tmp_path):
        program = nvrtc.createProgram(SET, "k.cu", (), ())
        nvrtc.compileProgram(program, ("-arch=sm_90", "-DVALUE=8"))
        code = nvrtc.getCUBIN(program)
        path = tmp_path / "image.so"
        path.write_bytes(whole(code))
        assert path.stat().st_size == len(code) + 1
        assert value(HostModule(path)) == 8

    def test_no_code_for_a_virtual_architecture(self, nvrtc):
        program = nvrtc.createProgram(SET, "k.cu", (), ())
        nvrtc.compileProgram(program, ("-arch=compute_90", "-DVALUE=8"))
        with pytest.raises(RuntimeError, match="cubin is requested"):
            nvrtc.getCUBIN(program)
        with pytest.raises(RuntimeError, match="PTX is not emulated"):
            nvrtc.getPTX(program)
        with pytest.raises(RuntimeError, match="LTO IR is not emulated"):
            nvrtc.getLTOIR(program)

    def test_the_compiler_is_known_by_comments(self, nvrtc):
        program = nvrtc.createProgram("", "", (), ())
        nvrtc.compileProgram(program, ("-arch=compute_90",))
        lines = nvrtc.getPTX(program).decode().splitlines()
        assert all(line.startswith("//") for line in lines)
        assert kernel_images.digest() in lines[1]

    @pytest.mark.parametrize(
        ("text", "options", "code", "log"),
        [
            ("int a = b;", (), 6, "'b' was not declared"),
            (SET, ("--use_fast_math",), 5, "unrecognized option --use_fast_math found"),
            (SET, ("-rdc=true",), 5, "unrecognized option -rdc found"),
            (SET, ("--fmad=maybe",), 5, "invalid value for --fmad: maybe"),
            (SET, ("--std=c++97",), 5, "invalid value for --std: c++97"),
            (SET, ("-prec-div=false",), 5, "--prec-div=false is not emulated"),
        ],
    )
    def test_errors_have_nvrtcs_codes_and_a_log(self, nvrtc, text, options, code, log):
        program = nvrtc.createProgram(text, "k.cu", (), ())
        with pytest.raises(FakeError, match=str(code)):
            nvrtc.compileProgram(program, options)
        assert log in nvrtc.getProgramLog(program)

    def test_the_version_is_that_of_the_runtime(self, nvrtc):
        assert nvrtc.getVersion() == (12, 9)

    def test_install_replaces_each_function(self):
        class Error(RuntimeError):
            pass

        binding: Any = SimpleNamespace(NVRTCError=Error, check_status=len)
        kernels.install(binding)
        error = binding.NVRTCError(6)
        assert (str(error), error.status) == ("NVRTC_ERROR_COMPILATION (6)", 6)
        assert {name for name in vars(kernels.Nvrtc) if name[0] != "_"} < set(vars(binding))
        assert binding.check_status is len


@pytest.mark.parametrize("program", SOURCES, ids=str)
def test_every_program_of_ncclkv_compiles(program: KernelSource) -> None:
    assert compiled(program).sizes(program.name) == [program.argument.itemsize]


def test_an_argument_of_another_layout_does_not_compile() -> None:
    longer = np.dtype([("all", COPY.argument), ("more", np.uint64)])
    program = dataclasses.replace(COPY, argument=longer)
    included = {name.decode(): text for name, text in headers().items()}
    with pytest.raises(kernel_images.Refused, match="not the layout that the launch fills"):
        image(Source(program.source, "copy.cu", included, program.options))


def test_the_sources_of_the_prelude_have_no_warnings() -> None:
    sources = sorted(kernel_images.PRELUDE.glob("*.cc"))
    command = [compiler.gxx(), *compiler.OWN_FLAGS, "-fsyntax-only", *map(str, sources)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
