#!/usr/bin/env bash
# What the documents name is there: files that they link to, anchors of headings, and paths in backticks that begin with a
# folder of the sources.
set -euo pipefail
cd "$PERIGEE_SOURCE"
mapfile -t pages < <(find README.md CONTRIBUTING.md docs kernels tools -name '*.md')
[ ${#pages[@]} -gt 10 ] || { echo "only ${#pages[@]} pages"; exit 1; }
perl -e '
    use strict;
    use File::Basename;
    my ($bad, $seen) = (0, 0);
    sub text { open(my $handle, "<", $_[0]) or die "$_[0]: $!"; local $/; <$handle> }
    sub anchors { map { my $line = lc; $line =~ s/[^\w\- ]//g; $line =~ s/ /-/g; ($line => 1) } text($_[0]) =~ /^#+ (.*)/mg }
    for my $page (@ARGV) {
        my $text = text($page);
        $text =~ s/^```.*?^```//msg;
        while ($text =~ /\]\(([^)\s]+)\)/g) {
            my ($path, $anchor) = split(/#/, $1, 2);
            next if $path =~ /^https?:/;
            ++$seen;
            my $file = $path eq "" ? $page : dirname($page) . "/$path";
            my %anchors = defined $anchor && -f $file ? anchors($file) : ();
            next if -e $file && (!defined $anchor || $anchors{$anchor});
            print "$page: no $1\n";
            $bad = 1;
        }
        while ($text =~ m{`((?:src|kernels|tools|tests|docs|configs|launch|cmake)/[\w./*-]+)}g) {
            ++$seen;
            my @found = glob("$1 $1.*");
            next if grep { -e } @found;
            print "$page: no $1\n";
            $bad = 1;
        }
    }
    die "only $seen names" if $seen < 100;
    exit $bad' "${pages[@]}"
