// Makes a bill of each order: an ordinary program for Amazon SQS. AWS_ENDPOINT_URL_SQS is all
// that tells it of cassq.

import { SQS } from "@aws-sdk/client-sqs";
import { Consumer } from "sqs-consumer";

const sqs = new SQS({});
const { QueueUrl: orders } = await sqs.getQueueUrl({ QueueName: "orders" });
const { QueueUrl: bills } = await sqs.getQueueUrl({ QueueName: "bills" });

const consumer = Consumer.create({
  sqs,
  queueUrl: orders,
  batchSize: 10,
  handleMessageBatch: async (messages) => {
    const Entries = messages.map(({ Body }, n) => ({
      Id: `${n}`,
      MessageBody: Body.replace("order", "bill"),
    }));
    const { Failed } = await sqs.sendMessageBatch({ QueueUrl: bills, Entries });
    if (Failed?.length) throw new Error("some bills were not sent"); // its orders come again
    return messages; // these are deleted
  },
});
consumer.on("error", (error) => consumer.status.isRunning && console.error(error));
process.on("SIGTERM", () => consumer.stop({ abort: true }));
consumer.start();
