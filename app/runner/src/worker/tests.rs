//! Tests of server and client over real sockets.
