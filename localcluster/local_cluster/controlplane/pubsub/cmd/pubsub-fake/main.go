// Google's fake Pub/Sub server, in a process of its own, for the tests of the batch subscriber.
//
// It prints two addresses: that of the gRPC service, and that of an HTTP service whose POST /advance?seconds=N
// moves the server's clock ahead. It ends with its standard input.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"cloud.google.com/go/pubsub/v2/pstest"
)

func main() {
	server := pstest.NewServer()
	var ahead atomic.Int64
	server.SetTimeNowFunc(func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	http.HandleFunc("POST /advance", func(answer http.ResponseWriter, request *http.Request) {
		seconds, err := strconv.ParseFloat(request.URL.Query().Get("seconds"), 64)
		if err != nil {
			http.Error(answer, err.Error(), http.StatusBadRequest)
			return
		}
		ahead.Add(int64(seconds * float64(time.Second)))
	})
	go http.Serve(listener, nil)
	fmt.Println(server.Addr, listener.Addr())
	io.Copy(io.Discard, os.Stdin)
}
