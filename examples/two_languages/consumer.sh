# Makes a bill of each order by plain HTTP, with nothing but curl.

queues="$AWS_ENDPOINT_URL_SQS/v1/queues"
while curl -sf "$queues/orders/messages?max=100&wait=20" > messages; do
    [ -s messages ] || continue
    sed 's/^.*"payload":"order \([0-9]*\)".*$/"bill \1"/' messages > bills
    curl -sf --data-binary @bills "$queues/bills/messages" > pushed || continue
    receipts=$(sed 's/^.*"receipt":"\([^"]*\)".*$/"\1"/' messages | paste -sd, -)
    echo "{\"ack\": [$receipts]}" | curl -sf --data-binary @- "$queues/orders/settle" > settled
done
