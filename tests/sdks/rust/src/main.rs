//! The scenario with aws-sdk-sqs.

use std::collections::HashSet;

use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::{
    DeleteMessageBatchRequestEntry, ListMessageMoveTasksResultEntry, Message,
    MessageAttributeValue, MessageSystemAttributeName, QueueAttributeName,
    SendMessageBatchRequestEntry,
};
use aws_sdk_sqs::{Client, Error};

async fn receive(client: &Client, url: &str, most: i32, wait: i32) -> Result<Vec<Message>, Error> {
    let answer = client
        .receive_message()
        .queue_url(url)
        .max_number_of_messages(most)
        .wait_time_seconds(wait)
        .message_attribute_names("All")
        .message_system_attribute_names(MessageSystemAttributeName::All)
        .send()
        .await?;
    Ok(answer.messages.unwrap_or_default())
}

async fn show(client: &Client, url: &str, message: &Message) -> Result<(), Error> {
    client
        .change_message_visibility()
        .queue_url(url)
        .receipt_handle(message.receipt_handle().unwrap())
        .visibility_timeout(0)
        .send()
        .await?;
    Ok(())
}

fn count(message: &Message) -> &str {
    let name = MessageSystemAttributeName::ApproximateReceiveCount;
    &message.attributes().unwrap()[&name]
}

async fn tasks(client: &Client, arn: &str) -> Result<Vec<ListMessageMoveTasksResultEntry>, Error> {
    let answer = client.list_message_move_tasks().source_arn(arn).max_results(10).send().await?;
    Ok(answer.results.unwrap_or_default())
}

/// The tasks, once the last one has ended this way.
async fn ended(
    client: &Client,
    arn: &str,
    status: &str,
) -> Result<Vec<ListMessageMoveTasksResultEntry>, Error> {
    loop {
        let listed = tasks(client, arn).await?;
        let now = listed[0].status().unwrap();
        if now != "RUNNING" && now != "CANCELLING" {
            assert_eq!(now, status);
            return Ok(listed);
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let client = Client::new(&aws_config::load_from_env().await);
    let created = client
        .create_queue()
        .queue_name("sdk-rust")
        .attributes(QueueAttributeName::VisibilityTimeout, "30")
        .send()
        .await?;
    let url = created.queue_url().unwrap();
    let named = client.get_queue_url().queue_name("sdk-rust").send().await?;
    assert_eq!(named.queue_url(), Some(url));

    // Attributes of each type come as they were sent.
    let value = |kind: &str| MessageAttributeValue::builder().data_type(kind);
    let text = value("String").string_value("grüß").build().unwrap();
    let number = value("Number").string_value("7.5").build().unwrap();
    let bytes = value("Binary").binary_value(Blob::new([0, 255])).build().unwrap();
    client
        .send_message()
        .queue_url(url)
        .message_body("one")
        .message_attributes("text", text.clone())
        .message_attributes("number", number.clone())
        .message_attributes("bytes", bytes.clone())
        .send()
        .await?;
    let one = &receive(&client, url, 1, 20).await?[0];
    assert_eq!(one.body(), Some("one"));
    let attributes = one.message_attributes().unwrap();
    assert_eq!(attributes["text"], text);
    assert_eq!(attributes["number"], number);
    assert_eq!(attributes["bytes"], bytes);
    assert_eq!(count(one), "1");
    client
        .delete_message()
        .queue_url(url)
        .receipt_handle(one.receipt_handle().unwrap())
        .send()
        .await?;

    // Of a batch each message succeeds or fails for itself.
    let entries = (0..10).map(|n| {
        SendMessageBatchRequestEntry::builder()
            .id(n.to_string())
            .message_body(format!("batch {n}"))
            .set_delay_seconds((n == 7).then_some(901))
            .build()
            .unwrap()
    });
    let sent = client
        .send_message_batch()
        .queue_url(url)
        .set_entries(Some(entries.collect()))
        .send()
        .await?;
    assert_eq!(sent.successful().len(), 9);
    assert_eq!(sent.failed()[0].id(), "7");
    let mut found = Vec::new();
    while found.len() < 9 {
        found.extend(receive(&client, url, 10, 20).await?);
    }

    // A message that is made visible comes again, and is counted.
    let again = found.pop().unwrap();
    show(&client, url, &again).await?;
    let second = receive(&client, url, 1, 20).await?.remove(0);
    assert_eq!(second.message_id(), again.message_id());
    assert_eq!(count(&second), "2");
    found.push(second);
    let entries = found.iter().enumerate().map(|(n, message)| {
        DeleteMessageBatchRequestEntry::builder()
            .id(n.to_string())
            .receipt_handle(message.receipt_handle().unwrap())
            .build()
            .unwrap()
    });
    let deleted = client
        .delete_message_batch()
        .queue_url(url)
        .set_entries(Some(entries.collect()))
        .send()
        .await?;
    assert_eq!(deleted.successful().len(), 9);

    // What is received too often moves to the queue of dead letters.
    let created = client.create_queue().queue_name("sdk-rust-dead").send().await?;
    let dead = created.queue_url().unwrap();
    let name = QueueAttributeName::QueueArn;
    let known = client
        .get_queue_attributes()
        .queue_url(dead)
        .attribute_names(name.clone())
        .send()
        .await?;
    let arn = &known.attributes().unwrap()[&name];
    let policy = format!(r#"{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": 2}}"#);
    client
        .set_queue_attributes()
        .queue_url(url)
        .attributes(QueueAttributeName::RedrivePolicy, policy)
        .send()
        .await?;
    let poison = client.send_message().queue_url(url).message_body("poison").send().await?;
    for _ in 0..2 {
        let message = &receive(&client, url, 1, 20).await?[0];
        assert_eq!(message.message_id(), poison.message_id());
        show(&client, url, message).await?;
    }
    assert!(receive(&client, url, 1, 1).await?.is_empty());
    let letter = &receive(&client, dead, 1, 20).await?[0];
    assert_eq!(letter.message_id(), poison.message_id());

    // A task moves dead letters to a queue at a rate, until it is cancelled; the next one moves the
    // rest.
    let known = client
        .get_queue_attributes()
        .queue_url(url)
        .attribute_names(name.clone())
        .send()
        .await?;
    let there = &known.attributes().unwrap()[&name];
    for _ in 0..2 {
        let letters = (0..10).map(|n| {
            let letter = SendMessageBatchRequestEntry::builder().id(n.to_string());
            letter.message_body(format!("letter {n}")).build().unwrap()
        });
        let batch = client.send_message_batch().queue_url(dead);
        batch.set_entries(Some(letters.collect())).send().await?;
    }
    let start = client.start_message_move_task().source_arn(arn).destination_arn(there);
    let started = start.clone().max_number_of_messages_per_second(1).send().await?;
    let running = &tasks(&client, arn).await?[0];
    assert_eq!(running.status(), Some("RUNNING"));
    assert_eq!(running.task_handle(), started.task_handle());
    assert_eq!(running.destination_arn(), Some(there.as_str()));
    assert_eq!(running.max_number_of_messages_per_second(), Some(1));
    let handle = started.task_handle().unwrap();
    let cancelled = client.cancel_message_move_task().task_handle(handle).send().await?;
    assert!(cancelled.approximate_number_of_messages_moved() < 20);
    let before = ended(&client, arn, "CANCELLED").await?[0].approximate_number_of_messages_moved();
    start.send().await?;
    let listed = ended(&client, arn, "COMPLETED").await?;
    assert_eq!(listed.len(), 2);
    assert_eq!(before + listed[0].approximate_number_of_messages_moved(), 20);
    let mut back = HashSet::new();
    while back.len() < 20 {
        for message in receive(&client, url, 10, 20).await? {
            back.insert(message.message_id().unwrap().to_owned());
        }
    }

    // Of a FIFO queue the first message of each group comes, and a duplicate is answered as the
    // first.
    let created = client
        .create_queue()
        .queue_name("sdk-rust.fifo")
        .attributes(QueueAttributeName::FifoQueue, "true")
        .attributes(QueueAttributeName::ContentBasedDeduplication, "true")
        .send()
        .await?;
    let fifo = created.queue_url().unwrap();
    let mut answers = Vec::new();
    for body in ["a1", "a2", "b1", "a1"] {
        let request = client.send_message().queue_url(fifo).message_body(body);
        answers.push(request.message_group_id(&body[..1]).send().await?);
    }
    assert_eq!(answers[3].message_id(), answers[0].message_id());
    assert_eq!(answers[3].sequence_number(), answers[0].sequence_number());
    assert!(answers[0].sequence_number() < answers[1].sequence_number());
    for expected in [vec!["a1", "b1"], vec!["a2"]] {
        let messages = receive(&client, fifo, 10, 20).await?;
        let bodies: Vec<_> = messages.iter().map(|each| each.body().unwrap()).collect();
        assert_eq!(bodies, expected);
        for each in &messages {
            let request = client.delete_message().queue_url(fifo);
            request.receipt_handle(each.receipt_handle().unwrap()).send().await?;
        }
    }
    client.delete_queue().queue_url(fifo).send().await?;

    // Errors have their types.
    client.delete_queue().queue_url(url).send().await?;
    let late = client.send_message().queue_url(url).message_body("late").send().await;
    assert!(late.unwrap_err().into_service_error().is_queue_does_not_exist());
    println!("rust: all as expected");
    Ok(())
}
