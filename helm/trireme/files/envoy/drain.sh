#!/bin/bash
# drain.sh SECONDS [ADMIN]
# Before Envoy is told to end, which it does at once: say "not ready", give load balancers SECONDS to see it, take no
# new connections, send the clients of the old ones elsewhere, and wait until no request runs.
# The image has no curl; bash itself can talk to the admin interface.
set -u
seconds=$1 admin=${2:-127.0.0.1/9901}

ask() {
  exec 3<>"/dev/tcp/$admin" || exit 0 # it has ended already
  printf '%s %s HTTP/1.1\r\nHost: envoy\r\nConnection: close\r\n\r\n' "$1" "$2" >&3
  cat <&3
  exec 3>&-
}

ask POST /healthcheck/fail >/dev/null
sleep "$seconds"
ask POST '/drain_listeners?graceful&skip_exit' >/dev/null
until [[ $(ask GET '/stats?filter=^http\.trireme\.downstream_rq_active$') == *': 0'* ]]; do
  sleep 0.5
done
