module headroom.dev/local-cluster/pause

go 1.26
