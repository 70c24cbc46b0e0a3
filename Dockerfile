# The server of a pod: NVIDIA's Triton with TensorRT-LLM, this project, and sshd for engines over several nodes.
#
#   docker build --build-arg BASE=nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3@sha256:... -t REGISTRY/trireme .
#   docker push REGISTRY/trireme    # prints the digest that the chart wants
#
# Built releases are not in it: they are mounted, or pulled to the node's disk (docs/kubernetes.md). How the project lies
# beside NVIDIA's own packages: docs/gpu_image.md.
ARG BASE=nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3
# checkov:skip=CKV_DOCKER_7:the tag, or better the digest, is in the argument
FROM ${BASE}

# As the chart runs it. ssh and sshd want a user that has a name.
RUN groupadd --gid 10001 trireme \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /bin/bash trireme \
    && install --directory --owner trireme --group trireme /var/lib/trireme

# Its version is the base image's distribution's.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openssh-client openssh-server \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*

# Before the code, which changes more often.
COPY pyproject.toml /opt/trireme/
COPY requirements/gpu-image* /opt/trireme/requirements/
COPY scripts /opt/trireme/scripts
COPY trireme/__init__.py /opt/trireme/trireme/
COPY trireme/installing /opt/trireme/trireme/installing
# More for scripts/gpu_image.py: "--in-front NAME" for a base that has another version than Trireme runs with.
ARG GPU_IMAGE_OPTIONS=
# python3 is the base's, which has tensorrt_llm. Root's cache would be of no use to the user who serves.
# hadolint ignore=SC2086
RUN PYTHONDONTWRITEBYTECODE=1 python3 /opt/trireme/scripts/gpu_image.py --into /opt/trireme-environment ${GPU_IMAGE_OPTIONS}

COPY . /opt/trireme
ENV PATH=/opt/trireme-environment/bin:${PATH}
# The user has no home, and the root file system is read only where it runs: what the libraries below TensorRT-LLM compile
# for a GPU, and what they download, goes to /tmp.
ENV HOME=/tmp \
    XDG_CACHE_HOME=/tmp/cache \
    HF_HOME=/tmp/cache/huggingface \
    TRITON_CACHE_DIR=/tmp/cache/triton \
    TORCHINDUCTOR_CACHE_DIR=/tmp/cache/torchinductor \
    FLASHINFER_WORKSPACE_BASE=/tmp/cache/flashinfer \
    CUDA_CACHE_PATH=/tmp/cache/cuda
# Bytecode is made now, too. Then tensorrt_llm is imported: as far as that goes without a driver, which a machine that
# builds images has not.
RUN python3 -m compileall -q -j 0 /opt/trireme /opt/trireme-environment \
    && trireme doctor --tensorrt-llm --without-gpu

USER 10001:10001
WORKDIR /var/lib/trireme
ENTRYPOINT ["trireme"]
CMD ["serve", "--help"]
# The kubelet asks /live, /started and /ready of --health-port.
HEALTHCHECK NONE
