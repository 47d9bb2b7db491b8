"""A picker for tests of the proxy, run as a process of its own so that it can be killed and frozen.

    python picker_stand_in.py PORT ENDPOINT...

It picks the endpoints in the request header `x-test-pick` (none without it) and passes bodies through. The
response header `x-test-served` has the endpoint that served, as Envoy reports it. `x-test-refuse` makes it
refuse with that status. Each line on its standard input replaces the endpoints that it serves over EDS.
"""

import asyncio
import datetime
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from envoy.config.core.v3 import address_pb2, base_pb2
from envoy.config.endpoint.v3 import endpoint_components_pb2, endpoint_pb2
from envoy.service.discovery.v3 import discovery_pb2
from envoy.service.endpoint.v3 import eds_pb2_grpc
from envoy.service.ext_proc.v3 import external_processor_pb2, external_processor_pb2_grpc
from envoy.type.v3 import http_status_pb2
from google.protobuf import any_pb2, struct_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from inference_api import names


def self_signed() -> tuple[bytes, bytes]:
    """Return key and certificate (PEM)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "picker")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private, certificate.public_bytes(pem)


def header(key: str, value: str) -> Any:
    return base_pb2.HeaderValueOption(
        header=base_pb2.HeaderValue(key=key, raw_value=value.encode()),
        append_action=base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
    )


def headers_of(message: Any) -> dict[str, str]:
    return {item.key: (item.raw_value.decode() or item.value) for item in message.headers.headers}


def changed(**headers: str) -> Any:
    mutation = external_processor_pb2.HeaderMutation(
        set_headers=[header(key.replace("_", "-"), value) for key, value in headers.items() if value]
    )
    common = external_processor_pb2.CommonResponse(header_mutation=mutation)
    return external_processor_pb2.HeadersResponse(response=common)


def same(body: Any) -> Any:
    streamed = external_processor_pb2.StreamedBodyResponse(body=body.body, end_of_stream=body.end_of_stream)
    mutation = external_processor_pb2.BodyMutation(streamed_response=streamed)
    common = external_processor_pb2.CommonResponse(body_mutation=mutation)
    return external_processor_pb2.BodyResponse(response=common)


class Picker(external_processor_pb2_grpc.ExternalProcessorServicer):  # type: ignore[misc]
    async def Process(self, messages: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        async for message in messages:
            yield self.answer(message)

    def answer(self, message: Any) -> Any:
        reply = external_processor_pb2.ProcessingResponse()
        kind = message.WhichOneof("request")
        if kind == "request_headers":
            headers = headers_of(message.request_headers)
            if refuse := headers.get("x-test-refuse"):
                status = http_status_pb2.HttpStatus(code=int(refuse))
                refusal = external_processor_pb2.ImmediateResponse(status=status, body=b"refused")
                reply.immediate_response.CopyFrom(refusal)
                return reply
            picked = headers.get("x-test-pick", "")
            reply.request_headers.CopyFrom(changed(**{names.DESTINATION_KEY: picked}))
            if picked:
                value = struct_pb2.Struct()
                value.update({names.LB_NAMESPACE: {names.DESTINATION_KEY: picked}})
                reply.dynamic_metadata.CopyFrom(value)
        elif kind == "request_body":
            reply.request_body.CopyFrom(same(message.request_body))
        elif kind == "request_trailers":
            reply.request_trailers.SetInParent()
        elif kind == "response_headers":
            metadata = message.metadata_context.filter_metadata
            fields = metadata[names.LB_NAMESPACE].fields if names.LB_NAMESPACE in metadata else {}
            served = fields[names.DESTINATION_SERVED_KEY].string_value if fields else ""
            reply.response_headers.CopyFrom(changed(x_test_served=served))
        elif kind == "response_body":
            reply.response_body.CopyFrom(same(message.response_body))
        else:
            reply.response_trailers.SetInParent()
        return reply


class Endpoints(eds_pb2_grpc.EndpointDiscoveryServiceServicer):  # type: ignore[misc]
    def __init__(self, endpoints: list[str]) -> None:
        self._endpoints = endpoints
        self._version = 1
        self._changed = asyncio.Condition()

    async def replace(self, endpoints: list[str]) -> None:
        async with self._changed:
            self._endpoints = endpoints
            self._version += 1
            self._changed.notify_all()

    async def follow(self, lines: asyncio.StreamReader) -> None:
        async for line in lines:
            await self.replace(line.decode().split())

    async def StreamEndpoints(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        first = await anext(requests)
        sent = 0
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._version != sent)  # noqa: B023
                sent = self._version
                answer = self.everything(first.type_url)
            yield answer

    def everything(self, type_url: str) -> Any:
        found = []
        for endpoint in self._endpoints:
            host, port = endpoint.rsplit(":", 1)
            socket = address_pb2.SocketAddress(address=host, port_value=int(port))
            address = address_pb2.Address(socket_address=socket)
            found.append(
                endpoint_components_pb2.LbEndpoint(endpoint=endpoint_components_pb2.Endpoint(address=address))
            )
        localities = [endpoint_components_pb2.LocalityLbEndpoints(lb_endpoints=found)] if found else []
        assignment = endpoint_pb2.ClusterLoadAssignment(cluster_name=names.EDS_CLUSTER, endpoints=localities)
        packed = any_pb2.Any()
        packed.Pack(assignment)
        version = str(self._version)
        return discovery_pb2.DiscoveryResponse(
            version_info=version, nonce=version, type_url=type_url, resources=[packed]
        )


async def standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return reader


async def serve(port: int, endpoints: list[str]) -> None:
    # Envoy pings twice a second, to notice a frozen picker.
    server = grpc.aio.server(options=[("grpc.http2.max_ping_strikes", 0)])
    external_processor_pb2_grpc.add_ExternalProcessorServicer_to_server(Picker(), server)
    discovery = Endpoints(endpoints)
    eds_pb2_grpc.add_EndpointDiscoveryServiceServicer_to_server(discovery, server)
    checks = health.aio.HealthServicer()
    await checks.set(names.EXT_PROC_SERVICE, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    server.add_secure_port(f"127.0.0.1:{port}", grpc.ssl_server_credentials([self_signed()]))
    await server.start()
    print("serving", flush=True)
    await discovery.follow(await standard_input())
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2:]))
