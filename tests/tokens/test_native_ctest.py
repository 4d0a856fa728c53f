"""The C++ library builds without Python and passes its own tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"
COMPILERS = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]


@pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("ctest")), reason="needs cmake and ctest")
@pytest.mark.skipif(not any(name and shutil.which(name) for name in COMPILERS), reason="needs a C++ compiler")
def test_the_library_builds_without_a_warning_and_passes_its_own_tests(tmp_path):
    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
        return done.stdout

    run("cmake", "-S", str(CSRC), "-B", ".", "-DLLENVS_NATIVE_TESTS=ON", "-DCMAKE_BUILD_TYPE=Release")
    assert "warning" not in run("cmake", "--build", ".")
    assert "100% tests passed" in run("ctest", "--output-on-failure")
