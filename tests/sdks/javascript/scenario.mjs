// The scenario with @aws-sdk/client-sqs, and sqs-consumer on top of it.

import assert from "node:assert/strict";
import { SQS, QueueDoesNotExist, UnsupportedOperation } from "@aws-sdk/client-sqs";
import { Consumer } from "sqs-consumer";

const sqs = new SQS({});
const { QueueUrl } = await sqs.createQueue({
  QueueName: "sdk-javascript",
  Attributes: { VisibilityTimeout: "30" },
});
assert.equal((await sqs.getQueueUrl({ QueueName: "sdk-javascript" })).QueueUrl, QueueUrl);

// Attributes of each type come as they were sent; the SDK verifies the checksums.
const attributes = {
  text: { DataType: "String", StringValue: "grüß" },
  number: { DataType: "Number", StringValue: "7.5" },
  bytes: { DataType: "Binary", BinaryValue: Uint8Array.of(0, 255) },
};
await sqs.sendMessage({ QueueUrl, MessageBody: "one", MessageAttributes: attributes });
const [one] = (
  await sqs.receiveMessage({
    QueueUrl,
    MessageAttributeNames: ["All"],
    MessageSystemAttributeNames: ["All"],
    WaitTimeSeconds: 20,
  })
).Messages;
assert.equal(one.Body, "one");
assert.deepEqual(one.MessageAttributes.text, attributes.text);
assert.deepEqual(one.MessageAttributes.number, attributes.number);
assert.deepEqual([...one.MessageAttributes.bytes.BinaryValue], [0, 255]);
assert.equal(one.Attributes.ApproximateReceiveCount, "1");
await sqs.deleteMessage({ QueueUrl, ReceiptHandle: one.ReceiptHandle });

// Of a batch each message succeeds or fails for itself.
const Entries = [...Array(10).keys()].map((n) => ({ Id: `${n}`, MessageBody: `batch ${n}` }));
Entries[7].DelaySeconds = 901;
const sent = await sqs.sendMessageBatch({ QueueUrl, Entries });
assert.equal(sent.Successful.length, 9);
assert.deepEqual(sent.Failed.map((each) => each.Id), ["7"]);
const found = [];
while (found.length < 9) {
  const answer = await sqs.receiveMessage({
    QueueUrl,
    MaxNumberOfMessages: 10,
    WaitTimeSeconds: 20,
  });
  found.push(...answer.Messages);
}
assert.equal(new Set(found.map((each) => each.Body)).size, 9);

// A message that is made visible comes again, and is counted.
const again = found.pop();
await sqs.changeMessageVisibility({
  QueueUrl,
  ReceiptHandle: again.ReceiptHandle,
  VisibilityTimeout: 0,
});
const [second] = (
  await sqs.receiveMessage({
    QueueUrl,
    MessageSystemAttributeNames: ["ApproximateReceiveCount"],
    WaitTimeSeconds: 20,
  })
).Messages;
assert.equal(second.MessageId, again.MessageId);
assert.deepEqual(second.Attributes, { ApproximateReceiveCount: "2" });
found.push(second);
const deleted = await sqs.deleteMessageBatch({
  QueueUrl,
  Entries: found.map((each, n) => ({ Id: `${n}`, ReceiptHandle: each.ReceiptHandle })),
});
assert.equal(deleted.Successful.length, 9);

// sqs-consumer handles messages, and deletes them; what fails comes again.
const handled = [];
await sqs.sendMessageBatch({
  QueueUrl,
  Entries: [...Array(5).keys()].map((n) => ({ Id: `${n}`, MessageBody: `task ${n}` })),
});
await new Promise((resolve, reject) => {
  const consumer = Consumer.create({
    queueUrl: QueueUrl,
    sqs,
    batchSize: 10,
    terminateVisibilityTimeout: true,
    handleMessage: async (message) => {
      handled.push(message.Body);
      if (message.Body === "task 3" && handled.filter((each) => each === "task 3").length === 1) {
        throw new Error("the first time it fails");
      }
      return message;
    },
  });
  consumer.on("error", reject);
  consumer.on("processing_error", () => {});
  consumer.on("message_processed", () => {
    if (handled.length === 6) consumer.stop();
  });
  consumer.on("stopped", resolve);
  consumer.start();
});
assert.equal(handled.filter((each) => each === "task 3").length, 2);
assert.equal(new Set(handled).size, 5);

// What is received too often moves to the queue of dead letters.
const dead = (await sqs.createQueue({ QueueName: "sdk-javascript-dead" })).QueueUrl;
const arn = (await sqs.getQueueAttributes({ QueueUrl: dead, AttributeNames: ["QueueArn"] }))
  .Attributes.QueueArn;
await sqs.setQueueAttributes({
  QueueUrl,
  Attributes: {
    RedrivePolicy: JSON.stringify({ deadLetterTargetArn: arn, maxReceiveCount: 2 }),
  },
});
const poison = await sqs.sendMessage({ QueueUrl, MessageBody: "poison" });
for (let n = 0; n < 2; n++) {
  const answer = await sqs.receiveMessage({ QueueUrl, VisibilityTimeout: 0, WaitTimeSeconds: 20 });
  assert.equal(answer.Messages[0].MessageId, poison.MessageId);
}
assert.equal((await sqs.receiveMessage({ QueueUrl, WaitTimeSeconds: 1 })).Messages, undefined);
const [letter] = (await sqs.receiveMessage({ QueueUrl: dead, WaitTimeSeconds: 20 })).Messages;
assert.equal(letter.MessageId, poison.MessageId);

// A task moves dead letters to a queue at a rate, until it is cancelled; the next one moves the rest.
const there = (await sqs.getQueueAttributes({ QueueUrl, AttributeNames: ["QueueArn"] }))
  .Attributes.QueueArn;
const letters = [...Array(10).keys()].map((n) => ({ Id: `${n}`, MessageBody: `letter ${n}` }));
for (let n = 0; n < 2; n++) {
  await sqs.sendMessageBatch({ QueueUrl: dead, Entries: letters });
}
const move = { SourceArn: arn, DestinationArn: there };
const tasks = async () =>
  (await sqs.listMessageMoveTasks({ SourceArn: arn, MaxResults: 10 })).Results;
const ended = async (status) => {
  let listed;
  do listed = await tasks();
  while (["RUNNING", "CANCELLING"].includes(listed[0].Status));
  assert.equal(listed[0].Status, status);
  return listed;
};
const { TaskHandle } = await sqs.startMessageMoveTask({ ...move, MaxNumberOfMessagesPerSecond: 1 });
const [running] = await tasks();
assert.equal(running.Status, "RUNNING");
assert.equal(running.TaskHandle, TaskHandle);
assert.equal(running.DestinationArn, there);
assert.equal(running.MaxNumberOfMessagesPerSecond, 1);
await assert.rejects(sqs.startMessageMoveTask(move), UnsupportedOperation);
const cancelled = await sqs.cancelMessageMoveTask({ TaskHandle });
assert(cancelled.ApproximateNumberOfMessagesMoved < 20);
await ended("CANCELLED");
await sqs.startMessageMoveTask(move);
const moved = (await ended("COMPLETED")).map((each) => each.ApproximateNumberOfMessagesMoved);
assert.equal(moved.length, 2);
assert.equal(moved[0] + moved[1], 20);
const back = [];
while (back.length < 20) {
  const answer = await sqs.receiveMessage({
    QueueUrl,
    MaxNumberOfMessages: 10,
    WaitTimeSeconds: 20,
  });
  back.push(...answer.Messages);
}
assert.equal(new Set(back.map((each) => each.MessageId)).size, 20);
assert.equal(new Set(back.map((each) => each.Body)).size, 10);

// Of a FIFO queue the first message of each group comes, and a duplicate is answered as the first.
const fifo = (
  await sqs.createQueue({
    QueueName: "sdk-javascript.fifo",
    Attributes: { FifoQueue: "true", ContentBasedDeduplication: "true" },
  })
).QueueUrl;
const answers = [];
for (const body of ["a1", "a2", "b1", "a1"]) {
  answers.push(
    await sqs.sendMessage({ QueueUrl: fifo, MessageBody: body, MessageGroupId: body[0] }),
  );
}
assert.equal(answers[3].MessageId, answers[0].MessageId);
assert.equal(answers[3].SequenceNumber, answers[0].SequenceNumber);
assert(answers[0].SequenceNumber < answers[1].SequenceNumber);
for (const expected of [["a1", "b1"], ["a2"]]) {
  const { Messages } = await sqs.receiveMessage({
    QueueUrl: fifo,
    MaxNumberOfMessages: 10,
    WaitTimeSeconds: 20,
    ReceiveRequestAttemptId: "x",
  });
  assert.deepEqual(Messages.map((each) => each.Body), expected);
  for (const each of Messages) {
    await sqs.deleteMessage({ QueueUrl: fifo, ReceiptHandle: each.ReceiptHandle });
  }
}
await sqs.deleteQueue({ QueueUrl: fifo });

// Errors have their types.
await sqs.deleteQueue({ QueueUrl });
await assert.rejects(sqs.sendMessage({ QueueUrl, MessageBody: "late" }), QueueDoesNotExist);
console.log("javascript: all as expected");
