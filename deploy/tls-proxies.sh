#!/bin/sh
# Writes which TLS proxies nginx trusts to name the client: addresses or networks in
# GRADLEDGER_TLS_PROXIES, with commas or spaces between them; nobody when it is empty.
# The image of nginx runs it before it starts (/docker-entrypoint.d).
set -eu
file=${1:-/tmp/tls-proxies.conf}

networks=$(printf %s "${GRADLEDGER_TLS_PROXIES:-}" | tr , ' ')
for network in $networks; do
    case $network in
    *[!0-9a-fA-F.:/]*)
        echo "GRADLEDGER_TLS_PROXIES: '$network' is not an address or a network, such as 10.77.1.1 or 10.0.0.0/8" >&2
        exit 1
        ;;
    esac
done

{
    echo 'geo $realip_remote_addr $from_tls_proxy {'
    echo '    default 0;'
    for network in $networks; do echo "    $network 1;"; done
    echo '}'
    for network in $networks; do echo "set_real_ip_from $network;"; done
} >"$file"
