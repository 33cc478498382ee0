"""`broker_transport_options`, and the arguments of queues."""

from __future__ import annotations

from typing import Any

import pytest

from cassq.errors import ConfigError, UsageError
from cassq.kombu.options import TransportOptions, options_of, settings_of


def test_options_have_defaults() -> None:
    assert options_of({"max_retries": 3}) == TransportOptions()
    assert settings_of(TransportOptions(), {}) == {"sick_check": True, "max_deliveries": 20}


def test_an_argument_of_a_queue_goes_before_the_options() -> None:
    options = options_of({"queue_prefix": "mail.", "queue_settings": {"max_deliveries": 7}})
    assert options.prefix == "mail."
    found = settings_of(options, {"x-cassq-claim-timeout": 5, "x-message-ttl": 2500})
    assert found == {
        "sick_check": True,
        "max_deliveries": 7,
        "claim_timeout": 5,
        "message_ttl": 2.5,
    }


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"visibility": 5}, "unknown option 'visibility'"),
        ({"queue_settings": {"max_delivery": 5}}, "no setting 'max_delivery'"),
        ({"queue_prefix": "a b"}, "'a b' is not a valid queue name"),
        ({"visibility_timeout": "5"}, "visibility_timeout"),
        ({"group_expires": 5}, "group_expires"),
    ],
)
def test_what_does_not_fit_is_named(given: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        options_of(given)


def test_an_argument_that_is_not_a_setting_is_named() -> None:
    with pytest.raises(ConfigError, match="no setting 'max_deliverys'"):
        settings_of(TransportOptions(), {"x-cassq-max-deliverys": 3})
