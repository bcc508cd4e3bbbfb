// Command probe gets the URL that is its last argument, and ends with 0 where the
// answer is 200. It stands in for the wget of an image that has a shell: options
// are passed over.
package main

import (
	"net/http"
	"os"
	"time"
)

func main() {
	client := &http.Client{Timeout: 3 * time.Second}
	resp, err := client.Get(os.Args[len(os.Args)-1])
	if err != nil || resp.StatusCode != http.StatusOK {
		os.Exit(1)
	}
}
