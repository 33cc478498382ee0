// The scenario with aws-sdk-go-v2.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func expect(right bool, what string, found any) {
	if !right {
		log.Fatalf("%s: %+v", what, found)
	}
}

func main() {
	ctx := context.Background()
	client := sqs.NewFromConfig(must(config.LoadDefaultConfig(ctx)))
	created := must(client.CreateQueue(ctx, &sqs.CreateQueueInput{
		QueueName:  aws.String("sdk-go"),
		Attributes: map[string]string{"VisibilityTimeout": "30"},
	}))
	url := created.QueueUrl
	named := must(client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: aws.String("sdk-go")}))
	expect(*named.QueueUrl == *url, "URL", *named.QueueUrl)

	receive := func(url *string, visible, most, wait int32) []types.Message {
		input := &sqs.ReceiveMessageInput{
			QueueUrl:                    url,
			MaxNumberOfMessages:         most,
			MessageAttributeNames:       []string{"All"},
			MessageSystemAttributeNames: []types.MessageSystemAttributeName{"All"},
			WaitTimeSeconds:             wait,
			VisibilityTimeout:           visible,
		}
		return must(client.ReceiveMessage(ctx, input)).Messages
	}
	send := func(body string, attributes map[string]types.MessageAttributeValue) string {
		return *must(client.SendMessage(ctx, &sqs.SendMessageInput{
			QueueUrl: url, MessageBody: &body, MessageAttributes: attributes,
		})).MessageId
	}

	// Attributes of each type come as they were sent; the SDK verifies the checksums.
	send("one", map[string]types.MessageAttributeValue{
		"text":   {DataType: aws.String("String"), StringValue: aws.String("grüß")},
		"number": {DataType: aws.String("Number"), StringValue: aws.String("7.5")},
		"bytes":  {DataType: aws.String("Binary"), BinaryValue: []byte{0, 255}},
	})
	one := receive(url, 30, 1, 20)[0]
	expect(*one.Body == "one", "body", one)
	expect(*one.MessageAttributes["text"].StringValue == "grüß", "text", one)
	expect(*one.MessageAttributes["number"].StringValue == "7.5", "number", one)
	expect(bytes.Equal(one.MessageAttributes["bytes"].BinaryValue, []byte{0, 255}), "bytes", one)
	expect(one.Attributes["ApproximateReceiveCount"] == "1", "count", one)
	must(client.DeleteMessage(ctx, &sqs.DeleteMessageInput{
		QueueUrl: url, ReceiptHandle: one.ReceiptHandle,
	}))

	// Of a batch each message succeeds or fails for itself.
	var entries []types.SendMessageBatchRequestEntry
	for n := range 10 {
		entry := types.SendMessageBatchRequestEntry{
			Id:          aws.String(strconv.Itoa(n)),
			MessageBody: aws.String(fmt.Sprintf("batch %d", n)),
		}
		if n == 7 {
			entry.DelaySeconds = 901
		}
		entries = append(entries, entry)
	}
	sent := must(client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{
		QueueUrl: url, Entries: entries,
	}))
	expect(len(sent.Successful) == 9 && *sent.Failed[0].Id == "7", "batch", sent)
	var found []types.Message
	for len(found) < 9 {
		found = append(found, receive(url, 30, 10, 20)...)
	}

	// A message that is made visible comes again, and is counted.
	again := found[8]
	must(client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
		QueueUrl: url, ReceiptHandle: again.ReceiptHandle, VisibilityTimeout: 0,
	}))
	found[8] = receive(url, 30, 1, 20)[0]
	expect(*found[8].MessageId == *again.MessageId, "again", found[8])
	expect(found[8].Attributes["ApproximateReceiveCount"] == "2", "count", found[8])
	var deletions []types.DeleteMessageBatchRequestEntry
	for n, message := range found {
		deletions = append(deletions, types.DeleteMessageBatchRequestEntry{
			Id: aws.String(strconv.Itoa(n)), ReceiptHandle: message.ReceiptHandle,
		})
	}
	deleted := must(client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{
		QueueUrl: url, Entries: deletions,
	}))
	expect(len(deleted.Successful) == 9, "deleted", deleted)

	// What is received too often moves to the queue of dead letters.
	dead := must(client.CreateQueue(ctx, &sqs.CreateQueueInput{
		QueueName: aws.String("sdk-go-dead"),
	})).QueueUrl
	attributes := must(client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: dead, AttributeNames: []types.QueueAttributeName{"QueueArn"},
	})).Attributes
	policy := fmt.Sprintf(
		`{"deadLetterTargetArn": %q, "maxReceiveCount": 2}`, attributes["QueueArn"],
	)
	must(client.SetQueueAttributes(ctx, &sqs.SetQueueAttributesInput{
		QueueUrl: url, Attributes: map[string]string{"RedrivePolicy": policy},
	}))
	poison := send("poison", nil)
	for range 2 {
		message := receive(url, 1, 1, 20)[0]
		expect(*message.MessageId == poison, "poison", message)
		must(client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
			QueueUrl: url, ReceiptHandle: message.ReceiptHandle, VisibilityTimeout: 0,
		}))
	}
	expect(len(receive(url, 30, 1, 1)) == 0, "poison again", nil)
	letter := receive(dead, 30, 1, 20)[0]
	expect(*letter.MessageId == poison, "letter", letter)

	// A task moves dead letters to a queue at a rate, until it is cancelled; the next one moves the
	// rest.
	source := aws.String(attributes["QueueArn"])
	destination := aws.String(must(client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: url, AttributeNames: []types.QueueAttributeName{"QueueArn"},
	})).Attributes["QueueArn"])
	var letters []types.SendMessageBatchRequestEntry
	for n := range 10 {
		letters = append(letters, types.SendMessageBatchRequestEntry{
			Id:          aws.String(strconv.Itoa(n)),
			MessageBody: aws.String(fmt.Sprintf("letter %d", n)),
		})
	}
	for range 2 {
		must(client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{
			QueueUrl: dead, Entries: letters,
		}))
	}
	tasks := func() []types.ListMessageMoveTasksResultEntry {
		return must(client.ListMessageMoveTasks(ctx, &sqs.ListMessageMoveTasksInput{
			SourceArn: source, MaxResults: aws.Int32(10),
		})).Results
	}
	ended := func(status string) []types.ListMessageMoveTasksResultEntry {
		for {
			listed := tasks()
			now := *listed[0].Status
			if now != "RUNNING" && now != "CANCELLING" {
				expect(now == status, "end of a task", listed)
				return listed
			}
		}
	}
	handle := must(client.StartMessageMoveTask(ctx, &sqs.StartMessageMoveTaskInput{
		SourceArn: source, DestinationArn: destination, MaxNumberOfMessagesPerSecond: aws.Int32(1),
	})).TaskHandle
	running := tasks()[0]
	expect(*running.Status == "RUNNING" && *running.TaskHandle == *handle, "task", running)
	expect(*running.DestinationArn == *destination, "destination", running)
	expect(*running.MaxNumberOfMessagesPerSecond == 1, "rate", running)
	cancelled := must(client.CancelMessageMoveTask(ctx, &sqs.CancelMessageMoveTaskInput{
		TaskHandle: handle,
	}))
	expect(cancelled.ApproximateNumberOfMessagesMoved < 20, "cancelled", cancelled)
	first := ended("CANCELLED")[0].ApproximateNumberOfMessagesMoved
	must(client.StartMessageMoveTask(ctx, &sqs.StartMessageMoveTaskInput{
		SourceArn: source, DestinationArn: destination,
	}))
	second := ended("COMPLETED")
	expect(len(second) == 2, "tasks", second)
	expect(first+second[0].ApproximateNumberOfMessagesMoved == 20, "moved", second)
	back := map[string]bool{}
	for len(back) < 20 {
		for _, message := range receive(url, 30, 10, 20) {
			back[*message.MessageId] = true
		}
	}

	// Of a FIFO queue the first message of each group comes, and a duplicate is answered as the first.
	fifo := must(client.CreateQueue(ctx, &sqs.CreateQueueInput{
		QueueName: aws.String("sdk-go.fifo"),
		Attributes: map[string]string{
			"FifoQueue": "true", "ContentBasedDeduplication": "true", "VisibilityTimeout": "30",
		},
	})).QueueUrl
	answers := []*sqs.SendMessageOutput{}
	for _, body := range []string{"a1", "a2", "b1", "a1"} {
		answers = append(answers, must(client.SendMessage(ctx, &sqs.SendMessageInput{
			QueueUrl: fifo, MessageBody: aws.String(body), MessageGroupId: aws.String(body[:1]),
		})))
	}
	expect(*answers[3].MessageId == *answers[0].MessageId, "duplicate", *answers[3].MessageId)
	expect(*answers[0].SequenceNumber < *answers[1].SequenceNumber, "order", *answers[1])
	for _, expected := range [][]string{{"a1", "b1"}, {"a2"}} {
		messages := receive(fifo, 30, 10, 20)
		expect(len(messages) == len(expected), "messages of a FIFO queue", messages)
		for n, each := range messages {
			expect(*each.Body == expected[n], "a message of a FIFO queue", *each.Body)
			must(client.DeleteMessage(ctx, &sqs.DeleteMessageInput{
				QueueUrl: fifo, ReceiptHandle: each.ReceiptHandle,
			}))
		}
	}
	must(client.DeleteQueue(ctx, &sqs.DeleteQueueInput{QueueUrl: fifo}))

	// Errors have their types.
	must(client.DeleteQueue(ctx, &sqs.DeleteQueueInput{QueueUrl: url}))
	_, err := client.SendMessage(ctx, &sqs.SendMessageInput{
		QueueUrl: url, MessageBody: aws.String("late"),
	})
	var missing *types.QueueDoesNotExist
	expect(errors.As(err, &missing), "error", err)
	fmt.Println("go: all as expected")
}
