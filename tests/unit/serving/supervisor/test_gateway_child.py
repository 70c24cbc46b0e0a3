# SPDX-License-Identifier: Apache-2.0
"""The gateway beside a server, as far as no server is needed for it."""

from pathlib import Path

import pytest

from ensemble_configs.spec.grpc_tls import GrpcTlsSpec
from ensemble_configs.spec.triton_spec import TritonSpec
from serving.supervisor.gateway_child import GatewayChild
from trireme.base.errors import SpecError
from trireme.base.free_ports import free_ports


def test_a_server_with_tls_is_told_to_have_a_gateway_of_its_own(tmp_path: Path) -> None:
    tls = GrpcTlsSpec.model_construct(cert_file=tmp_path / "tls.crt", key_file=tmp_path / "tls.key")
    triton = TritonSpec().model_copy(update={"grpc_tls": tls})
    [port] = free_ports(1)
    with pytest.raises(SpecError, match="trireme gateway serve --url grpcs://") as refused:
        GatewayChild(tmp_path / "a.yaml", triton, port=port, folder=tmp_path, log_format="text", tell=print)
    assert refused.value.facts["field"] == "gateway"


def test_a_gateway_that_was_never_started_gives_its_port_back(tmp_path: Path) -> None:
    [port] = free_ports(1)
    for _ in range(2):
        GatewayChild(
            tmp_path / "a.yaml", TritonSpec(), port=port, folder=tmp_path, log_format="text", tell=print
        ).close()
