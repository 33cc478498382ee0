"""Tables of SQS, which `python -m tests.gateway_model` makes from botocore's model.

Lists and maps are flattened in the Query encoding: each item has the list's own name.
"""

from __future__ import annotations

# The shapes of an action's input and output; "" if it has none.
ACTIONS: dict[str, tuple[str, str]] = {
    "AddPermission": ("AddPermissionRequest", ""),
    "CancelMessageMoveTask": ("CancelMessageMoveTaskRequest", "CancelMessageMoveTaskResult"),
    "ChangeMessageVisibility": ("ChangeMessageVisibilityRequest", ""),
    "ChangeMessageVisibilityBatch": (
        "ChangeMessageVisibilityBatchRequest",
        "ChangeMessageVisibilityBatchResult",
    ),
    "CreateQueue": ("CreateQueueRequest", "CreateQueueResult"),
    "DeleteMessage": ("DeleteMessageRequest", ""),
    "DeleteMessageBatch": ("DeleteMessageBatchRequest", "DeleteMessageBatchResult"),
    "DeleteQueue": ("DeleteQueueRequest", ""),
    "GetQueueAttributes": ("GetQueueAttributesRequest", "GetQueueAttributesResult"),
    "GetQueueUrl": ("GetQueueUrlRequest", "GetQueueUrlResult"),
    "ListDeadLetterSourceQueues": (
        "ListDeadLetterSourceQueuesRequest",
        "ListDeadLetterSourceQueuesResult",
    ),
    "ListMessageMoveTasks": ("ListMessageMoveTasksRequest", "ListMessageMoveTasksResult"),
    "ListQueueTags": ("ListQueueTagsRequest", "ListQueueTagsResult"),
    "ListQueues": ("ListQueuesRequest", "ListQueuesResult"),
    "PurgeQueue": ("PurgeQueueRequest", ""),
    "ReceiveMessage": ("ReceiveMessageRequest", "ReceiveMessageResult"),
    "RemovePermission": ("RemovePermissionRequest", ""),
    "SendMessage": ("SendMessageRequest", "SendMessageResult"),
    "SendMessageBatch": ("SendMessageBatchRequest", "SendMessageBatchResult"),
    "SetQueueAttributes": ("SetQueueAttributesRequest", ""),
    "StartMessageMoveTask": ("StartMessageMoveTaskRequest", "StartMessageMoveTaskResult"),
    "TagQueue": ("TagQueueRequest", ""),
    "UntagQueue": ("UntagQueueRequest", ""),
}

# Members: the shape, the name in the Query encoding, whether required.
STRUCTURES: dict[str, dict[str, tuple[str, str, bool]]] = {
    "AddPermissionRequest": {
        "QueueUrl": ("String", "QueueUrl", True),
        "Label": ("String", "Label", True),
        "AWSAccountIds": ("AWSAccountIdList", "AWSAccountId", True),
        "Actions": ("ActionNameList", "ActionName", True),
    },
    "BatchResultErrorEntry": {
        "Id": ("String", "Id", True),
        "SenderFault": ("Boolean", "SenderFault", True),
        "Code": ("String", "Code", True),
        "Message": ("String", "Message", False),
    },
    "CancelMessageMoveTaskRequest": {
        "TaskHandle": ("String", "TaskHandle", True),
    },
    "CancelMessageMoveTaskResult": {
        "ApproximateNumberOfMessagesMoved": ("Long", "ApproximateNumberOfMessagesMoved", False),
    },
    "ChangeMessageVisibilityBatchRequest": {
        "QueueUrl": ("String", "QueueUrl", True),
        "Entries": (
            "ChangeMessageVisibilityBatchRequestEntryList",
            "ChangeMessageVisibilityBatchRequestEntry",
            True,
        ),
    },
    "ChangeMessageVisibilityBatchRequestEntry": {
        "Id": ("String", "Id", True),
        "ReceiptHandle": ("String", "ReceiptHandle", True),
        "VisibilityTimeout": ("NullableInteger", "VisibilityTimeout", False),
    },
    "ChangeMessageVisibilityBatchResult": {
        "Successful": (
            "ChangeMessageVisibilityBatchResultEntryList",
            "ChangeMessageVisibilityBatchResultEntry",
            True,
        ),
        "Failed": ("BatchResultErrorEntryList", "BatchResultErrorEntry", True),
    },
    "ChangeMessageVisibilityBatchResultEntry": {
        "Id": ("String", "Id", True),
    },
    "ChangeMessageVisibilityRequest": {
        "QueueUrl": ("String", "QueueUrl", True),
        "ReceiptHandle": ("String", "ReceiptHandle", True),
        "VisibilityTimeout": ("NullableInteger", "VisibilityTimeout", True),
    },
    "CreateQueueRequest": {
        "QueueName": ("String", "QueueName", True),
        "Attributes": ("QueueAttributeMap", "Attribute", False),
        "tags": ("TagMap", "Tag", False),
    },
    "CreateQueueResult": {
        "QueueUrl": ("String", "QueueUrl", False),
    },
    "DeleteMessageBatchRequest": {
        "QueueUrl": ("String", "QueueUrl", True),
        "Entries": ("DeleteMessageBatchRequestEntryList", "DeleteMessageBatchRequestEntry", True),
    },
    "DeleteMessageBatchRequestEntry": {
        "Id": ("String", "Id", True),
        "ReceiptHandle": ("String", "ReceiptHandle", True),
    },
    "DeleteMessageBatchResult": {
        "Successful": ("DeleteMessageBatchResultEntryList", "DeleteMessageBatchResultEntry", True),
        "Failed": ("BatchResultErrorEntryList", "BatchResultErrorEntry", True),
    },
    "DeleteMessageBatchResultEntry": {
        "Id": ("String", "Id", True),
    },
    "DeleteMessageRequest": {
        "QueueUrl": ("String", "QueueUrl", True),
        "ReceiptHandle": ("String", "ReceiptHandle", True),
    },
    "DeleteQueueRequest": {
        "QueueUrl": ("String", "QueueUrl", True),
    },
    "GetQueueAttributesRequest": {
        "QueueUrl": ("String", "QueueUrl", True),
        "AttributeNames": ("AttributeNameList", "AttributeName", False),
    },
    "GetQueueAttributesResult": {
        "Attributes": ("QueueAttributeMap", "Attribute", False),
    },
    "GetQueueUrlRequest": {
        "QueueName": ("String", "QueueName", True),
        "QueueOwnerAWSAccountId": ("String", "QueueOwnerAWSAccountId", False),
    },
    "GetQueueUrlResult": {
        "QueueUrl": ("String", "QueueUrl", False),
    },
    "ListDeadLetterSourceQueuesRequest": {
        "QueueUrl": ("String", "QueueUrl", True),
        "NextToken": ("Token", "NextToken", False),
        "MaxResults": ("BoxedInteger", "MaxResults", False),
    },
    "ListDeadLetterSourceQueuesResult": {
        "queueUrls": ("QueueUrlList", "QueueUrl", True),
        "NextToken": ("Token", "NextToken", False),
    },
    "ListMessageMoveTasksRequest": {
        "SourceArn": ("String", "SourceArn", True),
        "MaxResults": ("NullableInteger", "MaxResults", False),
    },
    "ListMessageMoveTasksResult": {
        "Results": (
            "ListMessageMoveTasksResultEntryList",
            "ListMessageMoveTasksResultEntry",
            False,
        ),
    },
    "ListMessageMoveTasksResultEntry": {
        "TaskHandle": ("String", "TaskHandle", False),
        "Status": ("String", "Status", False),
        "SourceArn": ("String", "SourceArn", False),
        "DestinationArn": ("String", "DestinationArn", False),
        "MaxNumberOfMessagesPerSecond": ("NullableInteger", "MaxNumberOfMessagesPerSecond", False),
        "ApproximateNumberOfMessagesMoved": ("Long", "ApproximateNumberOfMessagesMoved", False),
        "ApproximateNumberOfMessagesToMove": (
            "NullableLong",
            "ApproximateNumberOfMessagesToMove",
            False,
        ),
        "FailureReason": ("String", "FailureReason", False),
        "StartedTimestamp": ("Long", "StartedTimestamp", False),
    },
    "ListQueueTagsRequest": {
        "QueueUrl": ("String", "QueueUrl", True),
    },
    "ListQueueTagsResult": {
        "Tags": ("TagMap", "Tag", False),
    },
    "ListQueuesRequest": {
        "QueueNamePrefix": ("String", "QueueNamePrefix", False),
        "NextToken": ("Token", "NextToken", False),
        "MaxResults": ("BoxedInteger", "MaxResults", False),
    },
    "ListQueuesResult": {
        "QueueUrls": ("QueueUrlList", "QueueUrl", False),
        "NextToken": ("Token", "NextToken", False),
    },
    "Message": {
        "MessageId": ("String", "MessageId", False),
        "ReceiptHandle": ("String", "ReceiptHandle", False),
        "MD5OfBody": ("String", "MD5OfBody", False),
        "Body": ("String", "Body", False),
        "Attributes": ("MessageSystemAttributeMap", "Attribute", False),
        "MD5OfMessageAttributes": ("String", "MD5OfMessageAttributes", False),
        "MessageAttributes": ("MessageBodyAttributeMap", "MessageAttribute", False),
    },
    "MessageAttributeValue": {
        "StringValue": ("String", "StringValue", False),
        "BinaryValue": ("Binary", "BinaryValue", False),
        "StringListValues": ("StringList", "StringListValue", False),
        "BinaryListValues": ("BinaryList", "BinaryListValue", False),
        "DataType": ("String", "DataType", True),
    },
    "MessageSystemAttributeValue": {
        "StringValue": ("String", "StringValue", False),
        "BinaryValue": ("Binary", "BinaryValue", False),
        "StringListValues": ("StringList", "StringListValue", False),
        "BinaryListValues": ("BinaryList", "BinaryListValue", False),
        "DataType": ("String", "DataType", True),
    },
    "PurgeQueueRequest": {
        "QueueUrl": ("String", "QueueUrl", True),
    },
    "ReceiveMessageRequest": {
        "QueueUrl": ("String", "QueueUrl", True),
        "AttributeNames": ("AttributeNameList", "AttributeName", False),
        "MessageSystemAttributeNames": (
            "MessageSystemAttributeList",
            "MessageSystemAttributeName",
            False,
        ),
        "MessageAttributeNames": ("MessageAttributeNameList", "MessageAttributeName", False),
        "MaxNumberOfMessages": ("NullableInteger", "MaxNumberOfMessages", False),
        "VisibilityTimeout": ("NullableInteger", "VisibilityTimeout", False),
        "WaitTimeSeconds": ("NullableInteger", "WaitTimeSeconds", False),
        "ReceiveRequestAttemptId": ("String", "ReceiveRequestAttemptId", False),
    },
    "ReceiveMessageResult": {
        "Messages": ("MessageList", "Message", False),
    },
    "RemovePermissionRequest": {
        "QueueUrl": ("String", "QueueUrl", True),
        "Label": ("String", "Label", True),
    },
    "SendMessageBatchRequest": {
        "QueueUrl": ("String", "QueueUrl", True),
        "Entries": ("SendMessageBatchRequestEntryList", "SendMessageBatchRequestEntry", True),
    },
    "SendMessageBatchRequestEntry": {
        "Id": ("String", "Id", True),
        "MessageBody": ("String", "MessageBody", True),
        "DelaySeconds": ("NullableInteger", "DelaySeconds", False),
        "MessageAttributes": ("MessageBodyAttributeMap", "MessageAttribute", False),
        "MessageSystemAttributes": (
            "MessageBodySystemAttributeMap",
            "MessageSystemAttribute",
            False,
        ),
        "MessageDeduplicationId": ("String", "MessageDeduplicationId", False),
        "MessageGroupId": ("String", "MessageGroupId", False),
    },
    "SendMessageBatchResult": {
        "Successful": ("SendMessageBatchResultEntryList", "SendMessageBatchResultEntry", True),
        "Failed": ("BatchResultErrorEntryList", "BatchResultErrorEntry", True),
    },
    "SendMessageBatchResultEntry": {
        "Id": ("String", "Id", True),
        "MessageId": ("String", "MessageId", True),
        "MD5OfMessageBody": ("String", "MD5OfMessageBody", True),
        "MD5OfMessageAttributes": ("String", "MD5OfMessageAttributes", False),
        "MD5OfMessageSystemAttributes": ("String", "MD5OfMessageSystemAttributes", False),
        "SequenceNumber": ("String", "SequenceNumber", False),
    },
    "SendMessageRequest": {
        "QueueUrl": ("String", "QueueUrl", True),
        "MessageBody": ("String", "MessageBody", True),
        "DelaySeconds": ("NullableInteger", "DelaySeconds", False),
        "MessageAttributes": ("MessageBodyAttributeMap", "MessageAttribute", False),
        "MessageSystemAttributes": (
            "MessageBodySystemAttributeMap",
            "MessageSystemAttribute",
            False,
        ),
        "MessageDeduplicationId": ("String", "MessageDeduplicationId", False),
        "MessageGroupId": ("String", "MessageGroupId", False),
    },
    "SendMessageResult": {
        "MD5OfMessageBody": ("String", "MD5OfMessageBody", False),
        "MD5OfMessageAttributes": ("String", "MD5OfMessageAttributes", False),
        "MD5OfMessageSystemAttributes": ("String", "MD5OfMessageSystemAttributes", False),
        "MessageId": ("String", "MessageId", False),
        "SequenceNumber": ("String", "SequenceNumber", False),
    },
    "SetQueueAttributesRequest": {
        "QueueUrl": ("String", "QueueUrl", True),
        "Attributes": ("QueueAttributeMap", "Attribute", True),
    },
    "StartMessageMoveTaskRequest": {
        "SourceArn": ("String", "SourceArn", True),
        "DestinationArn": ("String", "DestinationArn", False),
        "MaxNumberOfMessagesPerSecond": ("NullableInteger", "MaxNumberOfMessagesPerSecond", False),
    },
    "StartMessageMoveTaskResult": {
        "TaskHandle": ("String", "TaskHandle", False),
    },
    "TagQueueRequest": {
        "QueueUrl": ("String", "QueueUrl", True),
        "Tags": ("TagMap", "Tag", True),
    },
    "UntagQueueRequest": {
        "QueueUrl": ("String", "QueueUrl", True),
        "TagKeys": ("TagKeyList", "TagKey", True),
    },
}

# Lists: the shape of their items.
LISTS: dict[str, str] = {
    "AWSAccountIdList": "String",
    "ActionNameList": "String",
    "AttributeNameList": "QueueAttributeName",
    "BatchResultErrorEntryList": "BatchResultErrorEntry",
    "BinaryList": "Binary",
    "ChangeMessageVisibilityBatchRequestEntryList": "ChangeMessageVisibilityBatchRequestEntry",
    "ChangeMessageVisibilityBatchResultEntryList": "ChangeMessageVisibilityBatchResultEntry",
    "DeleteMessageBatchRequestEntryList": "DeleteMessageBatchRequestEntry",
    "DeleteMessageBatchResultEntryList": "DeleteMessageBatchResultEntry",
    "ListMessageMoveTasksResultEntryList": "ListMessageMoveTasksResultEntry",
    "MessageAttributeNameList": "MessageAttributeName",
    "MessageList": "Message",
    "MessageSystemAttributeList": "MessageSystemAttributeName",
    "QueueUrlList": "String",
    "SendMessageBatchRequestEntryList": "SendMessageBatchRequestEntry",
    "SendMessageBatchResultEntryList": "SendMessageBatchResultEntry",
    "StringList": "String",
    "TagKeyList": "TagKey",
}

# Maps from strings: the name of keys in the Query encoding, and the shape
# of values, whose name is Value.
MAPS: dict[str, tuple[str, str]] = {
    "MessageBodyAttributeMap": ("Name", "MessageAttributeValue"),
    "MessageBodySystemAttributeMap": ("Name", "MessageSystemAttributeValue"),
    "MessageSystemAttributeMap": ("Name", "String"),
    "QueueAttributeMap": ("Name", "String"),
    "TagMap": ("Key", "TagValue"),
}

# All else: string, integer, long, boolean or blob.
SCALARS: dict[str, str] = {
    "ExceptionMessage": "string",
    "MessageAttributeName": "string",
    "MessageSystemAttributeName": "string",
    "MessageSystemAttributeNameForSends": "string",
    "QueueAttributeName": "string",
    "String": "string",
    "TagKey": "string",
    "TagValue": "string",
    "Token": "string",
    "BoxedInteger": "integer",
    "NullableInteger": "integer",
    "Long": "long",
    "NullableLong": "long",
    "Boolean": "boolean",
    "Binary": "blob",
}

# The strings that the model names.
CHOICES: dict[str, tuple[str, ...]] = {
    "MessageSystemAttributeName": (
        "All",
        "SenderId",
        "SentTimestamp",
        "ApproximateReceiveCount",
        "ApproximateFirstReceiveTimestamp",
        "SequenceNumber",
        "MessageDeduplicationId",
        "MessageGroupId",
        "AWSTraceHeader",
        "DeadLetterQueueSourceArn",
    ),
    "MessageSystemAttributeNameForSends": ("AWSTraceHeader",),
    "QueueAttributeName": (
        "All",
        "Policy",
        "VisibilityTimeout",
        "MaximumMessageSize",
        "MessageRetentionPeriod",
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "CreatedTimestamp",
        "LastModifiedTimestamp",
        "QueueArn",
        "ApproximateNumberOfMessagesDelayed",
        "DelaySeconds",
        "ReceiveMessageWaitTimeSeconds",
        "RedrivePolicy",
        "FifoQueue",
        "ContentBasedDeduplication",
        "KmsMasterKeyId",
        "KmsDataKeyReusePeriodSeconds",
        "DeduplicationScope",
        "FifoThroughputLimit",
        "RedriveAllowPolicy",
        "SqsManagedSseEnabled",
    ),
}

# Errors: the code in the Query encoding, and the status of HTTP.
ERRORS: dict[str, tuple[str, int]] = {
    "BatchEntryIdsNotDistinct": ("AWS.SimpleQueueService.BatchEntryIdsNotDistinct", 400),
    "BatchRequestTooLong": ("AWS.SimpleQueueService.BatchRequestTooLong", 400),
    "EmptyBatchRequest": ("AWS.SimpleQueueService.EmptyBatchRequest", 400),
    "InvalidAddress": ("InvalidAddress", 404),
    "InvalidAttributeName": ("InvalidAttributeName", 400),
    "InvalidAttributeValue": ("InvalidAttributeValue", 400),
    "InvalidBatchEntryId": ("AWS.SimpleQueueService.InvalidBatchEntryId", 400),
    "InvalidIdFormat": ("InvalidIdFormat", 400),
    "InvalidMessageContents": ("InvalidMessageContents", 400),
    "InvalidSecurity": ("InvalidSecurity", 403),
    "KmsAccessDenied": ("KMS.AccessDeniedException", 400),
    "KmsDisabled": ("KMS.DisabledException", 400),
    "KmsInvalidKeyUsage": ("KMS.InvalidKeyUsageException", 400),
    "KmsInvalidState": ("KMS.InvalidStateException", 400),
    "KmsNotFound": ("KMS.NotFoundException", 400),
    "KmsOptInRequired": ("KMS.OptInRequired", 403),
    "KmsThrottled": ("KMS.ThrottlingException", 400),
    "MessageNotInflight": ("AWS.SimpleQueueService.MessageNotInflight", 400),
    "OverLimit": ("OverLimit", 403),
    "PurgeQueueInProgress": ("AWS.SimpleQueueService.PurgeQueueInProgress", 403),
    "QueueDeletedRecently": ("AWS.SimpleQueueService.QueueDeletedRecently", 400),
    "QueueDoesNotExist": ("AWS.SimpleQueueService.NonExistentQueue", 400),
    "QueueNameExists": ("QueueAlreadyExists", 400),
    "ReceiptHandleIsInvalid": ("ReceiptHandleIsInvalid", 400),
    "RequestThrottled": ("RequestThrottled", 403),
    "ResourceNotFoundException": ("ResourceNotFoundException", 404),
    "TooManyEntriesInBatchRequest": ("AWS.SimpleQueueService.TooManyEntriesInBatchRequest", 400),
    "UnsupportedOperation": ("AWS.SimpleQueueService.UnsupportedOperation", 400),
}
