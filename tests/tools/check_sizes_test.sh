#!/usr/bin/env bash
# tools/check_sizes.sh accepts this repository and finds what is planted in a small tree.
set -euo pipefail
check="${PERIGEE_SOURCE:?}/tools/check_sizes.sh"
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

# expect PATTERN|ok < SOURCE
expect() {
    local have=ok
    cat >"$tree/a.cc"
    "$check" "$tree" >"$tree/out" 2>&1 || have=bad
    if [ "$1" = ok ]; then [ $have = ok ] && return; else [ $have = bad ] && grep -qE "a\.cc:$1" "$tree/out" && return; fi
    echo "FAILED: expected '$1' of"
    head -n 4 "$tree/a.cc"
    cat "$tree/out"
    failures=1
}
lines() { for ((i = 0; i < $1; ++i)); do echo "    ++x;"; done; }

"$check" || failures=1
expect '1: f takes 7 arguments' <<<'void f(int a, int b, int c, int d, int e, int f, int g);'
expect ok <<<'void f(int a, std::map<int, int> b, int (*c)(int, int, int), int d = g(1, 2, 3), int e, int f);'
expect ok <<<'    f(a, b, c, d, e, f, g);'
expect '2: C takes 7 arguments' <<'E'
struct C {
    C(int a, int b, int c, int d, std::string const& e, int f,
      int g)
        : a_(a) {
    }
};
E
expect '1: S::f takes 7 arguments' <<'E'
std::vector<int> S::f(A const& a, B* b, int c, int d, int e, int f, int g) const {
    return {};
}
E
expect '1: g has 61 lines' < <(echo 'static int g(int x) {'; lines 59; echo '}')
expect ok < <(echo 'static int g(int x) {'; lines 58; echo '}')
expect '2: TEST has 61 lines' < <(echo; echo 'TEST(A, B) {'; lines 59; echo '}')
expect ok < <(echo 'class A {'; lines 70; echo '    int f() { return 1; }'; lines 70; echo '};')
expect ' 601 lines' < <(lines 601)
expect ok < <(echo '// Over 600 lines because it is a test.'; lines 601)
[ "$failures" = 0 ] && echo "all passed"
exit $failures
