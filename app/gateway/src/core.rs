//! One session as a machine without sockets and clock.
