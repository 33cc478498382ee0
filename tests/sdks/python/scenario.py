"""The scenario with boto3."""

import boto3

sqs = boto3.client("sqs")
url = sqs.create_queue(QueueName="sdk-python", Attributes={"VisibilityTimeout": "30"})["QueueUrl"]
assert sqs.get_queue_url(QueueName="sdk-python")["QueueUrl"] == url

# Attributes of each type come as they were sent; the SDK verifies the checksums.
ATTRIBUTES = {
    "text": {"DataType": "String", "StringValue": "grüß"},
    "number": {"DataType": "Number", "StringValue": "7.5"},
    "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
}
sqs.send_message(QueueUrl=url, MessageBody="one", MessageAttributes=ATTRIBUTES)
(one,) = sqs.receive_message(
    QueueUrl=url,
    MessageAttributeNames=["All"],
    MessageSystemAttributeNames=["All"],
    WaitTimeSeconds=20,
)["Messages"]
assert one["Body"] == "one", one
assert one["MessageAttributes"] == ATTRIBUTES, one
assert one["Attributes"]["ApproximateReceiveCount"] == "1", one
sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])

# Of a batch each message succeeds or fails for itself.
entries = [{"Id": str(n), "MessageBody": f"batch {n}"} for n in range(10)]
entries[7]["DelaySeconds"] = 901
sent = sqs.send_message_batch(QueueUrl=url, Entries=entries)
assert len(sent["Successful"]) == 9, sent
assert [each["Id"] for each in sent["Failed"]] == ["7"], sent
found = []
while len(found) < 9:
    answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=20)
    found += answer["Messages"]
assert {each["Body"] for each in found} == {f"batch {n}" for n in range(10) if n != 7}

# A message that is made visible comes again, and is counted.
again = found.pop()
sqs.change_message_visibility(
    QueueUrl=url, ReceiptHandle=again["ReceiptHandle"], VisibilityTimeout=0
)
(second,) = sqs.receive_message(
    QueueUrl=url, MessageSystemAttributeNames=["ApproximateReceiveCount"], WaitTimeSeconds=20
)["Messages"]
assert second["MessageId"] == again["MessageId"], second
assert second["Attributes"] == {"ApproximateReceiveCount": "2"}, second
found.append(second)
deleted = sqs.delete_message_batch(
    QueueUrl=url,
    Entries=[{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(found)],
)
assert len(deleted["Successful"]) == 9, deleted

# What is received too often moves to the queue of dead letters.
dead = sqs.create_queue(QueueName="sdk-python-dead")["QueueUrl"]
arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
sqs.set_queue_attributes(
    QueueUrl=url,
    Attributes={"RedrivePolicy": f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": "2"}}'},
)
sqs.send_message(QueueUrl=url, MessageBody="poison")
for _ in range(2):
    (poison,) = sqs.receive_message(QueueUrl=url, VisibilityTimeout=0, WaitTimeSeconds=20)[
        "Messages"
    ]
assert "Messages" not in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1)
(letter,) = sqs.receive_message(QueueUrl=dead, WaitTimeSeconds=20)["Messages"]
assert letter["MessageId"] == poison["MessageId"], letter

# Of a FIFO queue the first message of each group comes, and a duplicate is answered as the first.
fifo = sqs.create_queue(
    QueueName="sdk-python.fifo",
    Attributes={"FifoQueue": "true", "ContentBasedDeduplication": "true"},
)["QueueUrl"]
answers = [
    sqs.send_message(QueueUrl=fifo, MessageBody=body, MessageGroupId=body[0])
    for body in ("a1", "a2", "b1", "a1")
]
numbers = [each["SequenceNumber"] for each in answers]
assert numbers[:3] == sorted(numbers[:3]), numbers
assert (answers[3]["MessageId"], numbers[3]) == (answers[0]["MessageId"], numbers[0]), answers
for expected in (["a1", "b1"], ["a2"]):
    messages = sqs.receive_message(
        QueueUrl=fifo, MaxNumberOfMessages=10, WaitTimeSeconds=20, ReceiveRequestAttemptId="x"
    )["Messages"]
    assert [each["Body"] for each in messages] == expected, messages
    for each in messages:
        sqs.delete_message(QueueUrl=fifo, ReceiptHandle=each["ReceiptHandle"])
sqs.delete_queue(QueueUrl=fifo)

# Errors have their types.
sqs.send_message(QueueUrl=url, MessageBody="left")
sqs.purge_queue(QueueUrl=url)
assert "Messages" not in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1)
sqs.delete_queue(QueueUrl=url)
try:
    sqs.send_message(QueueUrl=url, MessageBody="late")
except sqs.exceptions.QueueDoesNotExist:
    print("python: all as expected")
else:
    raise AssertionError("the queue is still there")
