#!/usr/bin/env bash
# Holds the #include lines of src/ and kernels/ against the layers: cmake/Layers.cmake says which layer may include which,
# the table below where third-party headers stay. Prints every edge that is not allowed.
# tools/check_layers.sh [ROOT]
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

# "layer allowed", one edge a line, from the perigee_layer(...) calls.
edges=$(sed 's/#.*//' cmake/Layers.cmake | tr '\n' ' ' | grep -o '\bperigee_layer([^)]*)' | sed 's/perigee_layer(//; s/)//' |
    awk '{ list = 0
           print $1, $1
           for (i = 2; i <= NF; ++i)
               if ($i ~ /^[A-Z]+$/) list = $i == "LAYERS"
               else if (list) print $1, $i }')
[ -n "$edges" ] || { echo "check_layers: no perigee_layer(...) found in cmake/Layers.cmake" >&2; exit 1; }

# header pattern, pattern of the files that may include it
homes='
^yaml-cpp/                      ^src/config/
^(hdf5|H5)                      ^src/io/
^openssl/                       ^src/io/
^mpi\.h                         ^src/comm/
^nccl                           ^src/comm/
^(cblas|openblas)               ^src/ops/
^(cublas|cudnn)                 ^src/ops/cuda/
^(cuda|cooperative_groups|mma)  ^(src/device/cuda/|src/ops/cuda/|kernels/)
^CLI/                           ^src/(app|commands)/
^spdlog/                        ^src/base/
^(pcre2|oniguruma)              ^src/data/
^(sentencepiece|utf8proc)       ^src/data/
^nlohmann/json\.hpp            \.cc$
^httplib\.h                   ^src/(commands|serve)/
'
find src kernels -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' | sort |
    xargs grep -HnE '^[[:space:]]*#[[:space:]]*include[[:space:]]' |
    awk -v edges="$edges" -v homes="$homes" '
        BEGIN {
            n = split(edges, line, "\n")
            for (i = 1; i <= n; ++i) { split(line[i], edge, " "); allowed[edge[1], edge[2]] = layer[edge[1]] = 1 }
            n = split(homes, line, "\n")
            for (i = 1; i <= n; ++i) if (split(line[i], home, " ") == 2) where[home[1]] = home[2]
        }
        function complain(what) { print file ":" number ": " what; bad = 1 }
        {
            split($0, part, ":"); file = part[1]; number = part[2]
            split(file, folder, "/")
            own = folder[1] == "kernels" ? "kernels" : folder[2]
            header = $0; sub(/^[^<"]*[<"]/, "", header); sub(/[>"].*/, "", header)
            for (pattern in where)
                if (header ~ pattern && file !~ where[pattern]) complain("<" header "> belongs in " where[pattern])
            if ($0 !~ /include[[:space:]]*"/) next
            split(header, to, "/")
            if (!(to[1] in layer)) complain("\"" header "\" does not start with a layer")
            else if (!((own, to[1]) in allowed)) complain("layer " own " may not include " to[1] " (\"" header "\")")
        }
        END { exit bad }' || { echo "check_layers: these includes break the layers (cmake/Layers.cmake)" >&2; exit 1; }
