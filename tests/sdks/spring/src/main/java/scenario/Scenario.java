// Spring Cloud AWS's listener and template, as applications have them.

package scenario;

import io.awspring.cloud.sqs.annotation.SqsListener;
import io.awspring.cloud.sqs.operations.SqsTemplate;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.messaging.handler.annotation.Header;

@SpringBootApplication
public class Scenario {
    static final int COUNT = 50;
    static final Set<String> DONE = ConcurrentHashMap.newKeySet();
    static final CountDownLatch ALL = new CountDownLatch(COUNT);
    static final AtomicBoolean FAILED = new AtomicBoolean();

    @SqsListener(value = "sdk-spring", messageVisibilitySeconds = "2")
    void handle(String body, @Header("number") String number) {
        if (!body.equals("message " + number)) {
            throw new AssertionError(body);
        }
        if (number.equals("7") && FAILED.compareAndSet(false, true)) {
            throw new IllegalStateException("it comes again");
        }
        if (DONE.add(body)) {
            ALL.countDown();
        }
    }

    public static void main(String[] args) throws Exception {
        SpringApplication application = new SpringApplication(Scenario.class);
        application.setDefaultProperties(Map.of(
                "spring.cloud.aws.sqs.endpoint", System.getenv("AWS_ENDPOINT_URL_SQS"),
                "spring.cloud.aws.region.static", "us-east-1",
                "spring.cloud.aws.credentials.access-key", "any",
                "spring.cloud.aws.credentials.secret-key", "any"));
        try (var context = application.run(args)) {
            SqsTemplate template = context.getBean(SqsTemplate.class);
            for (int n = 0; n < COUNT; n++) {
                String number = String.valueOf(n);
                template.send(to -> to.queue("sdk-spring")
                        .payload("message " + number)
                        .header("number", number));
            }
            if (!ALL.await(120, TimeUnit.SECONDS)) {
                throw new AssertionError("only " + DONE.size() + " messages came");
            }
        }
        System.out.println("spring: all as expected");
        System.exit(0);
    }
}
