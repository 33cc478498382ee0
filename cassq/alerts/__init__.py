"""Alerts: notify people, once per incident, that a queue needs them, and when it is over.

`rules` says what is wrong, `incidents` which targets to notify of it, `targets` what each target
wants, `delivery` notifies them, and `watch` does all of it in one pass.
"""
