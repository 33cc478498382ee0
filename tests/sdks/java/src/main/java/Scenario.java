// The scenario with the AWS SDK for Java, version 2.

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.services.sqs.model.DeleteMessageBatchRequestEntry;
import software.amazon.awssdk.services.sqs.model.ListMessageMoveTasksResultEntry;
import software.amazon.awssdk.services.sqs.model.Message;
import software.amazon.awssdk.services.sqs.model.MessageAttributeValue;
import software.amazon.awssdk.services.sqs.model.MessageSystemAttributeName;
import software.amazon.awssdk.services.sqs.model.QueueAttributeName;
import software.amazon.awssdk.services.sqs.model.QueueDoesNotExistException;
import software.amazon.awssdk.services.sqs.model.SendMessageBatchRequestEntry;
import software.amazon.awssdk.services.sqs.model.SendMessageResponse;

public class Scenario {
    static final SqsClient SQS = SqsClient.create();

    static void expect(boolean right, Object found) {
        if (!right) {
            throw new AssertionError(found);
        }
    }

    static List<Message> receive(String url, int most, int wait) {
        return SQS.receiveMessage(r -> r.queueUrl(url)
                .maxNumberOfMessages(most)
                .waitTimeSeconds(wait)
                .messageAttributeNames("All")
                .messageSystemAttributeNames(MessageSystemAttributeName.ALL)).messages();
    }

    static void show(String url, Message message) {
        SQS.changeMessageVisibility(r -> r.queueUrl(url)
                .receiptHandle(message.receiptHandle())
                .visibilityTimeout(0));
    }

    static String count(Message message) {
        return message.attributes().get(MessageSystemAttributeName.APPROXIMATE_RECEIVE_COUNT);
    }

    static MessageAttributeValue value(String kind, String text) {
        return MessageAttributeValue.builder().dataType(kind).stringValue(text).build();
    }

    static List<ListMessageMoveTasksResultEntry> tasks(String arn) {
        return SQS.listMessageMoveTasks(r -> r.sourceArn(arn).maxResults(10)).results();
    }

    /** The tasks, once the last one has ended this way. */
    static List<ListMessageMoveTasksResultEntry> ended(String arn, String status) {
        while (true) {
            var listed = tasks(arn);
            String now = listed.get(0).status();
            if (!now.equals("RUNNING") && !now.equals("CANCELLING")) {
                expect(now.equals(status), listed);
                return listed;
            }
        }
    }

    public static void main(String[] arguments) {
        String url = SQS.createQueue(r -> r.queueName("sdk-java")
                .attributes(Map.of(QueueAttributeName.VISIBILITY_TIMEOUT, "30"))).queueUrl();
        expect(SQS.getQueueUrl(r -> r.queueName("sdk-java")).queueUrl().equals(url), url);

        // Attributes of each type come as they were sent; the SDK verifies the checksums.
        Map<String, MessageAttributeValue> attributes = Map.of(
                "text", value("String", "grüß"),
                "number", value("Number", "7.5"),
                "bytes", MessageAttributeValue.builder().dataType("Binary")
                        .binaryValue(SdkBytes.fromByteArray(new byte[] {0, (byte) 255})).build());
        SQS.sendMessage(r -> r.queueUrl(url).messageBody("one").messageAttributes(attributes));
        Message one = receive(url, 1, 20).get(0);
        expect(one.body().equals("one"), one);
        expect(one.messageAttributes().equals(attributes), one);
        expect(count(one).equals("1"), one);
        SQS.deleteMessage(r -> r.queueUrl(url).receiptHandle(one.receiptHandle()));

        // Of a batch each message succeeds or fails for itself.
        List<SendMessageBatchRequestEntry> entries = IntStream.range(0, 10)
                .mapToObj(n -> SendMessageBatchRequestEntry.builder()
                        .id("" + n)
                        .messageBody("batch " + n)
                        .delaySeconds(n == 7 ? 901 : null)
                        .build())
                .toList();
        var sent = SQS.sendMessageBatch(r -> r.queueUrl(url).entries(entries));
        expect(sent.successful().size() == 9 && sent.failed().get(0).id().equals("7"), sent);
        List<Message> found = new ArrayList<>();
        while (found.size() < 9) {
            found.addAll(receive(url, 10, 20));
        }

        // A message that is made visible comes again, and is counted.
        Message again = found.remove(8);
        show(url, again);
        Message second = receive(url, 1, 20).get(0);
        expect(second.messageId().equals(again.messageId()), second);
        expect(count(second).equals("2"), second);
        found.add(second);
        List<DeleteMessageBatchRequestEntry> deletions = IntStream.range(0, 9)
                .mapToObj(n -> DeleteMessageBatchRequestEntry.builder()
                        .id("" + n)
                        .receiptHandle(found.get(n).receiptHandle())
                        .build())
                .toList();
        var deleted = SQS.deleteMessageBatch(r -> r.queueUrl(url).entries(deletions));
        expect(deleted.successful().size() == 9, deleted);

        // What is received too often moves to the queue of dead letters.
        String dead = SQS.createQueue(r -> r.queueName("sdk-java-dead")).queueUrl();
        String arn = SQS.getQueueAttributes(r -> r.queueUrl(dead)
                .attributeNames(QueueAttributeName.QUEUE_ARN))
                .attributes().get(QueueAttributeName.QUEUE_ARN);
        String policy = "{\"deadLetterTargetArn\": \"" + arn + "\", \"maxReceiveCount\": 2}";
        SQS.setQueueAttributes(r -> r.queueUrl(url)
                .attributes(Map.of(QueueAttributeName.REDRIVE_POLICY, policy)));
        String poison = SQS.sendMessage(r -> r.queueUrl(url).messageBody("poison")).messageId();
        for (int n = 0; n < 2; n++) {
            Message message = receive(url, 1, 20).get(0);
            expect(message.messageId().equals(poison), message);
            show(url, message);
        }
        expect(receive(url, 1, 1).isEmpty(), "the poison comes again");
        Message letter = receive(dead, 1, 20).get(0);
        expect(letter.messageId().equals(poison), letter);

        // A task moves dead letters to a queue at a rate, until it is cancelled; the next one moves
        // the rest.
        String there = SQS.getQueueAttributes(r -> r.queueUrl(url)
                .attributeNames(QueueAttributeName.QUEUE_ARN))
                .attributes().get(QueueAttributeName.QUEUE_ARN);
        List<SendMessageBatchRequestEntry> letters = IntStream.range(0, 10)
                .mapToObj(n -> SendMessageBatchRequestEntry.builder()
                        .id("" + n)
                        .messageBody("letter " + n)
                        .build())
                .toList();
        for (int n = 0; n < 2; n++) {
            SQS.sendMessageBatch(r -> r.queueUrl(dead).entries(letters));
        }
        String handle = SQS.startMessageMoveTask(r -> r.sourceArn(arn)
                .destinationArn(there)
                .maxNumberOfMessagesPerSecond(1)).taskHandle();
        var running = tasks(arn).get(0);
        expect(running.status().equals("RUNNING"), running);
        expect(running.taskHandle().equals(handle), running);
        expect(running.destinationArn().equals(there), running);
        expect(running.maxNumberOfMessagesPerSecond() == 1, running);
        var cancelled = SQS.cancelMessageMoveTask(r -> r.taskHandle(handle));
        expect(cancelled.approximateNumberOfMessagesMoved() < 20, cancelled);
        long before = ended(arn, "CANCELLED").get(0).approximateNumberOfMessagesMoved();
        SQS.startMessageMoveTask(r -> r.sourceArn(arn).destinationArn(there));
        var listed = ended(arn, "COMPLETED");
        expect(listed.size() == 2, listed);
        expect(before + listed.get(0).approximateNumberOfMessagesMoved() == 20, listed);
        Set<String> back = new HashSet<>();
        while (back.size() < 20) {
            receive(url, 10, 20).forEach(each -> back.add(each.messageId()));
        }

        // Of a FIFO queue the first message of each group comes, and a duplicate is answered as the
        // first.
        String fifo = SQS.createQueue(r -> r.queueName("sdk-java.fifo")
                .attributes(Map.of(
                        QueueAttributeName.FIFO_QUEUE, "true",
                        QueueAttributeName.CONTENT_BASED_DEDUPLICATION, "true"))).queueUrl();
        List<SendMessageResponse> answers = Stream.of("a1", "a2", "b1", "a1")
                .map(body -> SQS.sendMessage(r -> r.queueUrl(fifo)
                        .messageBody(body)
                        .messageGroupId(body.substring(0, 1))))
                .toList();
        SendMessageResponse first = answers.get(0);
        expect(answers.get(3).messageId().equals(first.messageId()), answers);
        expect(answers.get(3).sequenceNumber().equals(first.sequenceNumber()), answers);
        expect(first.sequenceNumber().compareTo(answers.get(1).sequenceNumber()) < 0, answers);
        for (List<String> expected : List.of(List.of("a1", "b1"), List.of("a2"))) {
            List<Message> messages = receive(fifo, 10, 20);
            expect(messages.stream().map(Message::body).toList().equals(expected), messages);
            for (Message each : messages) {
                SQS.deleteMessage(r -> r.queueUrl(fifo).receiptHandle(each.receiptHandle()));
            }
        }
        SQS.deleteQueue(r -> r.queueUrl(fifo));

        // Errors have their types.
        SQS.deleteQueue(r -> r.queueUrl(url));
        try {
            SQS.sendMessage(r -> r.queueUrl(url).messageBody("late"));
        } catch (QueueDoesNotExistException expected) {
            System.out.println("java: all as expected");
            return;
        }
        throw new AssertionError("the queue is still there");
    }
}
