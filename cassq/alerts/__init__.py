"""Alerts: notify people, once per incident, that a queue, a schedule or a sidecar needs attention,
and when it has recovered.

`rules` finds what is wrong with queues (`schedules` and `sidecars`: with those), `incidents`
decides which targets to notify, `targets` defines these, `events` makes the events that `delivery`
sends, and `watch` runs all of it in one pass.
"""
