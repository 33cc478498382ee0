"""All 23 actions with boto3, in the encoding that is named: `json`, or `query`, which boto3 spoke
until 1.28.80; that one is in the folder `earlier`."""

import json
import sys
import time

if sys.argv[1] == "query":
    sys.path.insert(0, "earlier")
import boto3
from botocore import xform_name
from botocore.exceptions import ClientError

sqs = boto3.client("sqs")
assert sqs.meta.service_model.metadata["protocol"] == sys.argv[1]
called = set()
ARN = "arn:aws:sqs:us-east-1:000000000000:"
# Text that each encoding has to escape.
TEXT = "one <&> ü\n\t+%="
ATTRIBUTES = {
    "text": {"DataType": "String", "StringValue": TEXT},
    "number": {"DataType": "Number", "StringValue": "7.5"},
    "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
}
TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793"


def ask(action, **parameters):
    called.add(action)
    answer = getattr(sqs, action)(**parameters)
    answer.pop("ResponseMetadata")
    return answer


def until(what, condition):
    for _ in range(300):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError(what)


def receive(count):
    found = []
    while len(found) < count:
        answer = ask("receive_message", QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=20)
        found += answer.get("Messages", [])
    return found


def entries(messages, **more):
    return [
        {"Id": str(n), "ReceiptHandle": message["ReceiptHandle"], **more}
        for n, message in enumerate(messages)
    ]


# Queues, their attributes, tags and permissions.
url = ask("create_queue", QueueName="all", Attributes={"DelaySeconds": "0"}, tags={"k=": "v&"})[
    "QueueUrl"
]
dead = ask("create_queue", QueueName="all-dead")["QueueUrl"]
assert ask("get_queue_url", QueueName="all")["QueueUrl"] == url
assert set(ask("list_queues", QueueNamePrefix="all")["QueueUrls"]) == {url, dead}
first = ask("list_queues", QueueNamePrefix="all", MaxResults=1)
rest = ask("list_queues", QueueNamePrefix="all", MaxResults=1, NextToken=first["NextToken"])
assert {*first["QueueUrls"], *rest["QueueUrls"]} == {url, dead}
policy = {"deadLetterTargetArn": f"{ARN}all-dead", "maxReceiveCount": 1}
ask("set_queue_attributes", QueueUrl=url, Attributes={"RedrivePolicy": json.dumps(policy)})
found = ask("get_queue_attributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
assert json.loads(found["RedrivePolicy"])["deadLetterTargetArn"] == f"{ARN}all-dead", found
assert ask("list_dead_letter_source_queues", QueueUrl=dead)["queueUrls"] == [url]
ask("tag_queue", QueueUrl=url, Tags={"x": "1", "y": "2"})
ask("untag_queue", QueueUrl=url, TagKeys=["x"])
assert ask("list_queue_tags", QueueUrl=url)["Tags"] == {"k=": "v&", "y": "2"}
allowed = {"AWSAccountIds": ["000000000000"], "Actions": ["SendMessage", "ReceiveMessage"]}
ask("add_permission", QueueUrl=url, Label="label", **allowed)
ask("remove_permission", QueueUrl=url, Label="label")

# One message.
trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": TRACE}}
sent = {"MessageAttributes": ATTRIBUTES, "MessageSystemAttributes": trace, "DelaySeconds": 0}
ask("send_message", QueueUrl=url, MessageBody=TEXT, **sent)
wanted = {"AttributeNames": ["All"], "MessageAttributeNames": ["All"]}
(one,) = ask("receive_message", QueueUrl=url, WaitTimeSeconds=20, **wanted)["Messages"]
assert (one["Body"], one["MessageAttributes"]) == (TEXT, ATTRIBUTES), one
assert one["Attributes"]["AWSTraceHeader"] == TRACE, one
handle = {"QueueUrl": url, "ReceiptHandle": one["ReceiptHandle"]}
ask("change_message_visibility", **handle, VisibilityTimeout=40)
ask("delete_message", **handle)

# Batches, in which each entry succeeds or fails for itself.
batch = [
    {"Id": "a", "MessageBody": "1", "MessageAttributes": ATTRIBUTES},
    {"Id": "b", "MessageBody": "2"},
    {"Id": "c", "MessageBody": "3", "DelaySeconds": 901},
]
answer = ask("send_message_batch", QueueUrl=url, Entries=batch)
assert [each["Id"] for each in answer["Successful"]] == ["a", "b"], answer
assert [(each["Id"], each["SenderFault"]) for each in answer["Failed"]] == [("c", True)], answer
visible = entries(receive(2), VisibilityTimeout=0)
answer = ask("change_message_visibility_batch", QueueUrl=url, Entries=visible)
assert len(answer["Successful"]) == 2, answer


# They were received once, and so become dead letters; a task moves them back.
def are_dead():
    ask("receive_message", QueueUrl=url, MaxNumberOfMessages=10)
    name = "ApproximateNumberOfMessages"
    found = ask("get_queue_attributes", QueueUrl=dead, AttributeNames=[name])
    return found["Attributes"][name] == "2"


until("both are dead letters", are_dead)
moving = {"SourceArn": f"{ARN}all-dead", "DestinationArn": f"{ARN}all"}
task = ask("start_message_move_task", **moving, MaxNumberOfMessagesPerSecond=100)["TaskHandle"]


def moves():
    return ask("list_message_move_tasks", SourceArn=f"{ARN}all-dead", MaxResults=5)["Results"]


until("they are moved", lambda: moves()[0]["Status"] == "COMPLETED")
assert moves()[0]["ApproximateNumberOfMessagesMoved"] == 2, moves()
try:
    ask("cancel_message_move_task", TaskHandle=task)
except ClientError as exc:
    assert "CancelMessageMoveTask" in str(exc), exc
else:
    raise AssertionError("a task that is over cannot be cancelled")
answer = ask("delete_message_batch", QueueUrl=url, Entries=entries(receive(2)))
assert len(answer["Successful"]) == 2, answer

ask("purge_queue", QueueUrl=url)
ask("delete_queue", QueueUrl=url)
ask("delete_queue", QueueUrl=dead)
try:
    ask("get_queue_url", QueueName="all")
except sqs.exceptions.QueueDoesNotExist as exc:
    assert exc.response["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue", exc
else:
    raise AssertionError("the queue is gone")

actions = {xform_name(name) for name in sqs.meta.service_model.operation_names}
assert called == actions, actions - called
print(f"actions in {sys.argv[1]}: all as expected")
