#!/usr/bin/env bash
# Holds the sources against CONTRIBUTING.md: at most 600 lines a file, 60 lines a function, 6 arguments. A file that must
# be longer says why in a line that starts with "// Over 600 lines because".
# tools/check_sizes.sh [FOLDER...]
set -euo pipefail
[ $# -gt 0 ] || { cd "$(dirname "$0")/.." && set -- src tools tests; }
mapfile -t files < <(find "$@" -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' | sort)
[ ${#files[@]} -gt 0 ] || { echo "check_sizes: no sources in $*" >&2; exit 1; }
perl -e '
    use strict;
    my ($most_lines, $most_rows, $most_arguments, $bad) = (600, 60, 6, 0);
    sub complain { print "@_\n"; $bad = 1 }
    sub rows { 1 + ($_[0] =~ tr/\n//) }

    # What lies between the parenthesis before $at and the one that closes it, without what is nested in it.
    sub list {
        my ($text, $at) = @_;
        my ($depth, $flat) = (1, "");
        pos($$text) = $at;
        while ($depth > 0 && $$text =~ /\G([^(){}\[\]]*)(.)/gs) {
            $flat .= $1 if $depth == 1;
            $depth += $2 =~ /[({\[]/ ? 1 : -1;
        }
        1 while $flat =~ s/<[^<>]*>//g;
        return $flat;
    }

    for my $file (@ARGV) {
        open(my $handle, "<", $file) or die "$file: $!";
        my @lines = <$handle>;
        complain("$file: " . @lines . " lines, more than $most_lines")
            if @lines > $most_lines && !grep { m{^// Over 600 lines because} } @lines;
        for (@lines) { s{"(?:\\.|[^"\\])*"}{""}g; s{//.*}{} }
        my $text = join("", @lines);
        while ($text =~ /^( *)([^\n;#]*?)([\w:~]+)\(/mg) {
            my ($indent, $before, $name, $at) = ($1, $2, $3, pos($text));
            my $flat = list(\$text, $at);
            my $end = pos($text);
            my $head = rows(substr($text, 0, $at));
            pos($text) = $at;
            next if "$before$name" =~ /^(?:return|else|if|for|while|switch|case|throw|do)\b|^[:,]|=/;
            next unless substr($text, $end, 400) =~ /\A\s*(?:const\b|noexcept\b|override\b|final\b|->[^{};]*|= 0|requires[^{;]*|:[^;]*?\)(?=\s*\{)|\s)*([{;])(\n?)/;
            my $opens = $1 eq "{" && $2 ne "";  # a body of more than one line
            my $arguments = ($flat =~ tr/,//) + 1;
            # A list of arguments that are declared, not passed: a type, then a name.
            my $declares = $opens || $flat =~ /^\s*(?:const )?[\w:]+(?: const)?[ &*]+[&*]*\w+\s*,/;
            complain("$file:$head: $name takes $arguments arguments, more than $most_arguments")
                if $declares && $arguments > $most_arguments;
            next unless $opens && substr($text, $at) =~ /^$indent\}/m;
            my $rows = rows(substr($text, $at, $+[0]));
            complain("$file:$head: $name has $rows lines, more than $most_rows") if $rows > $most_rows;
        }
    }
    exit $bad' "${files[@]}"
