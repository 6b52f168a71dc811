#!/usr/bin/env bash
# The built programs are hardened: position independent, all relocations read-only before main, stack protector,
# fortified functions, checked indices of the standard library; no other library takes the C library's place.
set -uo pipefail
failures=0
complain() { echo "FAILED: $1"; failures=$((failures + 1)); }
if [ "$(nm -C "$PERIGEE_BIN/perigee" | grep -c __asan_init)" != 0 ]; then
    echo "built with sanitizers, which bring checks of their own"
    exit 77
fi
for name in perigee probe config_reference; do
    program=$PERIGEE_BIN/$name
    readelf -h "$program" | grep -q 'Type: *DYN' || complain "$name is not position independent"
    readelf -lW "$program" | grep -q GNU_RELRO || complain "$name has no RELRO"
    readelf -dW "$program" | grep -q 'NOW' || complain "$name binds lazily: RELRO is partial"
    readelf -lW "$program" | grep 'GNU_STACK' | grep -q 'RWE' && complain "$name has an executable stack"
    symbols=$(nm -D "$program")
    grep -q __stack_chk_fail <<<"$symbols" || complain "$name has no stack protector"
    grep -qE '__[a-z]+_chk(@|$)' <<<"$symbols" || complain "$name has no fortified function"
    grep -q 'glibcxx_assert_fail' <<<"$symbols" || complain "$name does not check indices"
    # Oniguruma would give regcomp() another meaning for every library of the program.
    libraries=$(readelf -dW "$program" | sed -n 's/.*NEEDED.*\[\(libc\|libonig\)\.so.*/\1/p')
    [ "${libraries%%$'\n'*}" = libc ] || complain "$name finds functions of Oniguruma before the C library's"
done
[ "$failures" = 0 ] && echo "all hardened"
exit $((failures > 0))
