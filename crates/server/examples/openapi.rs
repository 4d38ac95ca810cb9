//! Prints the description of the HTTP interface, as it is kept in `spec/openapi.json`.

fn main() {
    print!("{}", percale_server::http::openapi::openapi_json());
}
