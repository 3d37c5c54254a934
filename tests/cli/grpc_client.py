"""What a gRPC client does that knows the server by reflection alone: run by serve_grpc_test.py with the port and a key.

Prints JSON.
"""

import json
import sys

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

port, key = sys.argv[1:]
channel = grpc.insecure_channel(f"127.0.0.1:{port}")
database = ProtoReflectionDescriptorDatabase(channel)
pool = DescriptorPool(database)
service = pool.FindServiceByName("tierkv.v1.KvMetrics")


def call(name, streamed):
    method = service.FindMethodByName(name)
    kind = channel.unary_stream if streamed else channel.unary_unary
    request, reply = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    return request, kind(f"/{service.full_name}/{name}", request.SerializeToString, reply.FromString)


def told(message):
    return json_format.MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def refused(work):
    try:
        work()
    except grpc.RpcError as problem:
        return problem.code().name
    return None


GetRequest, get = call("Get", False)
WatchRequest, watch = call("Watch", True)
metadata = [("authorization", "Bearer " + key)] if key else []
reports = []
stream = watch(WatchRequest(interval_ms=100), metadata=metadata, timeout=60)
for report in stream:
    reports.append(told(report))
    if len(reports) == 3:
        stream.cancel()
        break
print(json.dumps({
    "services": sorted(database.get_services()),
    "report": told(get(GetRequest(), metadata=metadata, timeout=60)),
    "watched": len(reports),
    "no_key": refused(lambda: get(GetRequest(), timeout=60)),
    "other_header": refused(lambda: get(GetRequest(), metadata=[("x-api-key", key)], timeout=60)),
    "wrong_key": refused(lambda: next(iter(watch(WatchRequest(), metadata=[("authorization", "Bearer no")], timeout=60)))),
    "hasty": refused(lambda: next(watch(WatchRequest(interval_ms=1), metadata=metadata, timeout=60))),
}))  # fmt: skip
