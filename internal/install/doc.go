// Package install writes what an installation on several machines starts from:
// keys, certificates, the configuration of the NATS servers, and for each part a
// directory that holds what is its own and nothing else.
//
//	DIR/
//	  keys/                 every key; stays with whoever runs the installation
//	  ca/                   ca.pem, and ca-key.pem that signs certificates
//	  nats/<server>/        nats.conf, tls.pem, tls-key.pem, ca.pem
//	  parts/<part>/keys/    the part's keys, and ca.pem
//	  parts/<part>/         of a gateway: tenants.yaml, tls.pem, tls-key.pem
//	  data/<part>/          empty: what the part writes
//	  .env                  what docker-compose.yml leaves open
//
// A file that is there stays as it is. One that would be written otherwise than
// it is, as the servers' configuration after a part was added, is an error that
// says so.
package install
