# The server of a pod: NVIDIA's Triton with TensorRT-LLM, this project, and sshd for engines over several nodes.
#
#   docker build --build-arg BASE=nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3@sha256:... -t REGISTRY/trireme .
#   docker push REGISTRY/trireme    # prints the digest that the chart wants
#
# Built releases are not in it: they are mounted, or pulled to the node's disk (docs/kubernetes.md).
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

# Before the code, which changes more often. The base's packages stay visible: tensorrt_llm is one of them.
COPY requirements/serving.txt /opt/trireme/requirements/
# Without pip: NVIDIA's images have no ensurepip, and their own pip installs into it as well.
RUN python3 -m venv --system-site-packages --without-pip /opt/venv \
    && /opt/venv/bin/python -m pip install --no-cache-dir --require-hashes --requirement /opt/trireme/requirements/serving.txt

COPY . /opt/trireme
# The root file system is read only where it runs, so bytecode is made now.
RUN /opt/venv/bin/python -m pip install --no-cache-dir --no-deps --editable /opt/trireme \
    && /opt/venv/bin/python -m compileall -q -j 0 /opt/trireme

ENV PATH=/opt/venv/bin:${PATH}
USER 10001:10001
WORKDIR /var/lib/trireme
ENTRYPOINT ["trireme"]
CMD ["serve", "--help"]
# The kubelet asks /live, /started and /ready of --health-port.
HEALTHCHECK NONE
